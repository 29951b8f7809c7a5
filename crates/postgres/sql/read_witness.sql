-- Which store this is, where it was seen last, and whether the database still has what this process knows of the logs:
-- the incarnation, the version of the map, and for each log its end and who wrote the row at a position.
-- Binds: $1 smallint[] logs, $2 bigint[] a position of each. One snapshot.
-- Rows:  one per log; one without a log if there are none.
-- Index: per log one backward step in events_pkey and one look into it.
SELECT s.incarnation, s.logs, s.schema_version, c.id AS store, m.here AS database, m.version AS map_version,
       s.cluster, s.timeline, s.synchronous,
       w.log, last.position AS end_position, last.writer AS end_writer, known.writer AS known_writer
FROM store AS s CROSS JOIN clusters AS c CROSS JOIN map AS m
LEFT JOIN unnest($1::smallint[], $2::bigint[]) AS w(log, position) ON true
LEFT JOIN LATERAL (SELECT e.position, e.writer FROM events AS e WHERE e.log = w.log
                   ORDER BY e.log DESC, e.position DESC LIMIT 1) AS last ON true
LEFT JOIN LATERAL (SELECT e.writer FROM events AS e WHERE e.log = w.log AND e.position = w.position LIMIT 1) AS known ON true
