-- Events of the log. Binds: 1 above this position, 2 up to this position. Index: primary key.
-- Rows: as many as the reader steps through, by position.
SELECT position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, metadata, data
FROM events WHERE position > ?1 AND position <= ?2 ORDER BY position;
