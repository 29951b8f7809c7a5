-- Stores one event. Binds: 1 position, 2 stream, 3 revision, 4 event_id (16 bytes), 5 type, 6 created (µs),
-- 7 content type (0 JSON, 1 binary), 8 writer, 9 checksum, 10 tags (text or null), 11 metadata, 12 data.
-- Write lock held. Fails on the primary key or events_by_stream if another row is there. Rows: none.
INSERT INTO events (position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, metadata, data)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);
