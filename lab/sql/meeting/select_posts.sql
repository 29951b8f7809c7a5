-- What was said at a gathering so far, in the order of the members.
--
-- Binds: $1 text meeting, $2 integer gathering. Rows: at most one per member. Index: primary key of posts.
SELECT body
FROM gesta_lab_meeting.posts
WHERE meeting = $1 AND gathering = $2
ORDER BY member
