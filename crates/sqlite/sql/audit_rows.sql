-- Raw events for the audit. Binds: 1 above this position. Index: primary key, if it is still there.
-- Rows: as many as the reader steps through, by position.
SELECT position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, metadata, data
FROM events WHERE position > ?1 ORDER BY position;
