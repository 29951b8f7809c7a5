-- How many processes have said something at a gathering.
--
-- Binds: $1 integer gathering; {schema} is the meeting's. Rows: 1. Index: primary key of posts.
SELECT count(*)
FROM {schema}.posts
WHERE gathering = $1
