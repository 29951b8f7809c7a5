-- Begins a new life of the store, after a restore. $1 uuid. One row.
UPDATE store SET incarnation = $1
