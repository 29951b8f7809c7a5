-- The next rows of a log, without their payload. $1 smallint log, $2 bigint after, $3 bigint up to, $4 bigint rows at
-- most.
-- Rows: position, writer, stream, revision, by position. Index: events_pkey.
SELECT position, writer, stream, revision FROM events WHERE log = $1 AND position > $2 AND position <= $3
ORDER BY log, position LIMIT $4
