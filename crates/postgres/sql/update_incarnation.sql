-- Begins a new life of the store, after a restore, and tells the servers that run.
-- Binds: $1 uuid the new incarnation, $2 text channel, $3 text payload.
WITH updated AS (UPDATE store SET incarnation = $1 RETURNING one)
SELECT pg_notify($2, $3) FROM updated
