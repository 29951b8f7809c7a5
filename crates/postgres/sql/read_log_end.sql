-- The incarnation of the store and the last row of a log; the row's columns are NULL if the log is empty.
-- $1 smallint log. Index: one backward step in events_pkey.
SELECT e.position, e.writer, e.created, s.incarnation
FROM store AS s
LEFT JOIN LATERAL (SELECT position, writer, created FROM events WHERE log = $1
                   ORDER BY log DESC, position DESC LIMIT 1) AS e ON true
