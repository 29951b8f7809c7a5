-- The marks of the store. Rows: one (schema version, incarnation, logs).
SELECT schema_version, incarnation, logs FROM store WHERE id = 1;
