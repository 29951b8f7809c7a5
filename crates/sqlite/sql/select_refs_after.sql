-- Events of the log without payload. Binds: 1 above this position, 2 how many at most. Index: primary key.
-- Rows: at most as many as bound, by position.
SELECT position, writer, created, stream, revision, event_id, type FROM events WHERE position > ?1 ORDER BY position LIMIT ?2;
