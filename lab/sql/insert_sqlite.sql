-- One event into Gesta's table on SQLite, without looking at anything before.
--
-- Binds: ?1 position, ?2 stream, ?3 revision, ?4 event_id (16 bytes), ?5 created (µs), ?6 checksum, ?7 metadata, ?8 data.
-- Rows:  none. Index: primary key and events_by_stream.
INSERT INTO events (position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, metadata, data)
VALUES (?1, ?2, ?3, ?4, 1, ?5, 0, 1, ?6, NULL, ?7, ?8)
