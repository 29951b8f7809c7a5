-- Raw event types for the audit. Binds: 1 above this row id. Rows: as many as the reader steps through, by row id.
SELECT id, name, checksum FROM types WHERE id > ?1 ORDER BY id;
