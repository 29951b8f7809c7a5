-- One event without payload. Binds: 1 position. Index: primary key. Rows: at most one.
SELECT position, writer, created, stream, revision, event_id, type FROM events WHERE position = ?1;
