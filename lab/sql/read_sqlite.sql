-- A page of the rows of Gesta's table on SQLite, all columns that an event is made of, names and types as numbers.
--
-- Binds: ?1 after this position, ?2 rows at most. Index: primary key. No locks.
SELECT position, stream, revision, event_id, type, created, content_type, tags, metadata, data
FROM events
WHERE position > ?1
ORDER BY position
LIMIT ?2
