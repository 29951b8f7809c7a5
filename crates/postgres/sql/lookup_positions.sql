-- Events at positions without their payload. $1 smallint log, $2 bigint[] positions. Index: events_pkey.
SELECT e.position, e.writer, e.created, e.stream, e.revision, e.event_id, e.type
FROM events AS e
WHERE e.log = $1 AND e.position = ANY ($2)
ORDER BY e.log, e.position
