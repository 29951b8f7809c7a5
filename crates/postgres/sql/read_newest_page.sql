-- A position after which there are few rows of a log. $1 smallint log, $2 bigint the least answer, $3 bigint rows. One
-- row.
-- Index: events_pkey, backwards.
SELECT coalesce((SELECT position FROM events WHERE log = $1 AND position > $2 AND position < 9223372036854775807
                 ORDER BY log DESC, position DESC OFFSET $3 LIMIT 1), $2)
