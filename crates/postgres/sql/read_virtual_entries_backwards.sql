-- Entries of a virtual stream, last ones first. $1 bigint number, $2 bigint lowest and $3 bigint highest revision,
-- $4 bigint rows at most. Index: range of virtual_entries_pkey.
SELECT revision, position FROM virtual_entries
WHERE stream = $1 AND revision >= $2 AND revision <= $3
ORDER BY stream DESC, revision DESC LIMIT $4
