-- The incarnation of the store and the last row of each log, in their order; the row's columns are NULL for an empty log.
-- No binds. Index: one backward step in events_pkey for each log.
SELECT e.position, e.writer, e.created, s.incarnation
FROM store AS s
CROSS JOIN generate_series(0, s.logs - 1) AS l(log)
LEFT JOIN LATERAL (SELECT position, writer, created FROM events WHERE log = l.log::smallint
                   ORDER BY log DESC, position DESC LIMIT 1) AS e ON true
ORDER BY l.log
