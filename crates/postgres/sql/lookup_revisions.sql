-- Events of a stream without their payload. $1 smallint log, $2 bigint stream, $3 bigint first revision, $4 bigint
-- last revision, included. Index: range of events_stream_revision_key.
SELECT e.position, e.writer, e.created, e.stream, e.revision, e.event_id, e.type
FROM events AS e
WHERE e.log = $1 AND e.stream = $2 AND e.revision >= $3 AND e.revision <= $4
ORDER BY e.log, e.stream, e.revision
