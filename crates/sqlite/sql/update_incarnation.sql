-- Begins a new life of the store. Binds: 1 incarnation (16 bytes). Rows: none.
UPDATE store SET incarnation = ?1 WHERE id = 1;
