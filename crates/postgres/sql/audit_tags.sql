-- Entries of the tag index. $1 smallint log, $2 text and $3 bigint the entry before, $4 bigint rows.
SELECT tag, position FROM tags WHERE log = $1 AND (tag, position) > ($2::text, $3::bigint)
ORDER BY log, tag, position LIMIT $4
