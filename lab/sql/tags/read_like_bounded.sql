-- The next events of a tag, up to the number below which nothing is missing.
--
-- Binds: $1 text pattern, $2 bigint after, $3 bigint rows at most, $4 bigint up to. Index: journal_pkey, each row
--        between is looked at.
SELECT ordering, message, persistence_id, sequence_number, created, identifier, manifest
FROM journal
WHERE tags LIKE $1 AND ordering > $2 AND ordering <= $4 AND deleted = false
ORDER BY ordering
LIMIT $3
