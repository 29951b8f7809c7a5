-- The next free number of a meeting; a unique violation if another process takes it at the same moment.
--
-- Binds: none; {schema} is its name. Rows: 1, the number. Index: primary key of members.
INSERT INTO {schema}.members (member)
SELECT coalesce(max(member) + 1, 0)
FROM {schema}.members
RETURNING member
