-- The next events of a tag, up to the number below which nothing is missing.
--
-- Binds: $1 text number of the tag, $2 bigint after, $3 bigint rows at most, $4 bigint up to. Index: journal_tags_idx,
--        journal_ordering_idx, or both.
SELECT ordering, message, persistence_id, sequence_number, metadata
FROM journal
WHERE tags @> ARRAY[$1::text::integer] AND ordering > $2 AND ordering <= $4 AND deleted = false
ORDER BY ordering
LIMIT $3
