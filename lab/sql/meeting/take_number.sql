-- The next free number of a meeting; fails with a unique violation if another process takes it at the same moment.
-- Whoever sees the member sees its lock, too: the session holds it from before the commit until it ends.
--
-- Binds: $1 text meeting. Rows: 1, the number. Index: primary key of members. Locks: an advisory one of the session.
WITH taken AS (
    INSERT INTO gesta_lab_meeting.members (meeting, member)
    SELECT $1::text, coalesce(max(member) + 1, 0)
    FROM gesta_lab_meeting.members
    WHERE meeting = $1::text
    RETURNING member
)
SELECT member, pg_advisory_lock(hashtext($1::text), member) FROM taken
