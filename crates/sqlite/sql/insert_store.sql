-- Marks a new store. Binds: 1 schema version, 2 incarnation (16 bytes), 3 created (µs).
-- Runs in the transaction of the first migration. Rows: none.
INSERT INTO store (id, schema_version, incarnation, logs, created) VALUES (1, ?1, ?2, 1, ?3);
