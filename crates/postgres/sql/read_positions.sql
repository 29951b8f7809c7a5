-- The positions of the next rows of a log. $1 smallint log, $2 bigint after, $3 bigint up to, $4 bigint rows at most.
-- One row with an array. Index: events_pkey alone, if the table was vacuumed.
SELECT coalesce(array_agg(p.position), '{}') FROM (
    SELECT position FROM events WHERE log = $1 AND position > $2 AND position <= $3 ORDER BY log, position LIMIT $4) AS p
