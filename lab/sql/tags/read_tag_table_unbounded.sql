-- The next events of a tag; reads on past numbers that are not committed yet, and never comes back to them.
--
-- Binds: $1 text tag, $2 bigint after, $3 bigint rows at most. Index: tags_tag_idx or tags_pkey, then journal_pkey.
SELECT j.ordering, j.message, j.persistence_id, j.sequence_number, j.created, j.identifier, j.manifest
FROM tags AS t
JOIN journal AS j ON j.ordering = t.ordering_id
WHERE t.tag = $1 AND t.ordering_id > $2 AND j.deleted = false
ORDER BY j.ordering
LIMIT $3
