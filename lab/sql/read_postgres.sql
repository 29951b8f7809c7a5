-- A page of the rows of Gesta's table on PostgreSQL, all columns that an event is made of, names and types as numbers.
--
-- Binds: $1 bigint after this position, $2 bigint up to this one. Index: range of events_pkey, in order. No locks.
SELECT position, stream, revision, type, created, event_id, content_type, tags, metadata, data
FROM events
WHERE log = 0 AND position > $1 AND position <= $2
ORDER BY log, position
