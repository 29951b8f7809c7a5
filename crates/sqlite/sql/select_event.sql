-- One event. Binds: 1 position. Index: primary key. Rows: at most one.
SELECT position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, metadata, data
FROM events WHERE position = ?1;
