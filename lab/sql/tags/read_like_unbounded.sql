-- The next events of a tag; reads on past numbers that are not committed yet, and never comes back to them.
--
-- Binds: $1 text pattern, $2 bigint after, $3 bigint rows at most. Index: journal_pkey, each row after $2 is looked at.
SELECT ordering, message, persistence_id, sequence_number, created, identifier, manifest
FROM journal
WHERE tags LIKE $1 AND ordering > $2 AND deleted = false
ORDER BY ordering
LIMIT $3
