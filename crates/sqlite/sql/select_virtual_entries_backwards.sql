-- Entries of a virtual stream, last ones first. Binds: 1 number, 2 lowest and 3 highest revision, 4 rows at most.
-- Index: the primary key, which is the table. Rows: (revision, position).
SELECT revision, position FROM virtual_entries
WHERE stream = ?1 AND revision BETWEEN ?2 AND ?3 ORDER BY revision DESC LIMIT ?4;
