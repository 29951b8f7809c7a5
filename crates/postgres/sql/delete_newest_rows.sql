-- Removes the rows of a log after a position, with their tags and the names that they were the first to use. As the
-- retention role, which may do that to names in this transaction alone. $1 smallint log, $2 bigint after. One row: how
-- many events.
WITH tagged AS (
    DELETE FROM tags WHERE log = $1 AND position > $2
), streamed AS (
    DELETE FROM streams WHERE log = $1 AND id > $2
), typed AS (
    DELETE FROM types WHERE log = $1 AND id > $2
), removed AS (
    DELETE FROM events WHERE log = $1 AND position > $2 AND position < 9223372036854775807 RETURNING true
)
SELECT count(*) FROM removed
