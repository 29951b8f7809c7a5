-- Removes rows between two positions that are not among those given. As the retention role.
-- $1 smallint log, $2 bigint after, $3 bigint up to, $4 bigint[] the positions that stay.
WITH tagged AS (
    DELETE FROM tags WHERE log = $1 AND position > $2 AND position <= $3 AND position <> ALL ($4)
)
DELETE FROM events WHERE log = $1 AND position > $2 AND position <= $3 AND position <> ALL ($4)
