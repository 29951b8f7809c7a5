-- Positions and sizes of the next events of a log. Rows that share a position come together.
-- The row that closes a log is left out. Binds: $1 smallint log, $2 bigint after, $3 bigint rows.
SELECT position, (octet_length(coalesce(packed, data)) + octet_length(metadata))::bigint FROM events
WHERE log = $1 AND position > $2 AND position < 9223372036854775807 ORDER BY position FETCH FIRST $3 ROWS WITH TIES
