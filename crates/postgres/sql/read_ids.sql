-- The ids of a part of a log. $1 smallint log, $2 bigint after, $3 bigint to. Index: events_pkey.
SELECT e.stream, e.event_id, e.position, e.created
FROM events AS e
WHERE e.log = $1 AND e.position > $2 AND e.position <= $3
