-- The last row of a log; none if it is empty. $1 smallint log. Index: one backward step in events_pkey.
SELECT position, writer, created FROM events WHERE log = $1 ORDER BY log DESC, position DESC LIMIT 1
