-- Forgets a meeting.
--
-- Binds: $1 text meeting. Rows: as many as there were posts and members.
WITH posts AS (DELETE FROM gesta_lab_meeting.posts WHERE meeting = $1)
DELETE FROM gesta_lab_meeting.members
WHERE meeting = $1
