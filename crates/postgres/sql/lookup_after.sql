-- The next events of a log without their payload. $1 smallint log, $2 bigint after, $3 bigint rows at most. Index: events_pkey.
SELECT e.position, e.writer, e.created, e.stream, e.revision, e.event_id, e.type
FROM events AS e
WHERE e.log = $1 AND e.position > $2
ORDER BY e.log, e.position
LIMIT $3
