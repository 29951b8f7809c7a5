-- The next events of a tag, up to the number below which nothing is missing.
--
-- Binds: $1 text tag, $2 bigint after, $3 bigint rows at most, $4 bigint up to. Index: tags_tag_idx or tags_pkey, then
--        journal_pkey.
SELECT j.ordering, j.message, j.persistence_id, j.sequence_number, j.created, j.identifier, j.manifest
FROM tags AS t
JOIN journal AS j ON j.ordering = t.ordering_id
WHERE t.tag = $1 AND t.ordering_id > $2 AND t.ordering_id <= $4 AND j.deleted = false
ORDER BY j.ordering
LIMIT $3
