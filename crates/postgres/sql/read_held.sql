-- What this database holds of each log, in their order: whether the log is closed, and its last row but for the one
-- that closes it; the row's columns are NULL if there is none. No binds. Index: two steps in events_pkey for each log.
SELECT EXISTS (SELECT FROM events AS c WHERE c.log = l.log::smallint AND c.position = 9223372036854775807) AS closed,
       e.position, e.writer, e.stream, e.revision
FROM store AS s
CROSS JOIN generate_series(0, s.logs - 1) AS l(log)
LEFT JOIN LATERAL (SELECT position, writer, stream, revision FROM events
                   WHERE log = l.log::smallint AND position < 9223372036854775807
                   ORDER BY log DESC, position DESC LIMIT 1) AS e ON true
ORDER BY l.log
