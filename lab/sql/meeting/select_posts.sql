-- What was said at a gathering, in the order of the members.
--
-- Binds: $1 integer gathering; {schema} is the meeting's. Rows: one per member. Index: primary key of posts.
SELECT body
FROM {schema}.posts
WHERE gathering = $1
ORDER BY member
