-- Members that have said nothing at a gathering and are not there any more.
--
-- Binds: $1 text meeting, $2 integer gathering, $3 integer member who asks.
-- Rows: their numbers; NULL if somebody has found that before and has ended the meeting.
SELECT m.member
FROM gesta_lab_meeting.members AS m
WHERE m.meeting = $1
  AND NOT EXISTS (SELECT FROM pg_locks AS l
                  WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
                    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                    AND l.classid::bigint = hashtext($1::text)::bigint & 4294967295
                    AND l.objid::bigint = m.member)
  AND NOT EXISTS (SELECT FROM gesta_lab_meeting.posts AS p
                  WHERE p.meeting = $1 AND p.gathering = $2 AND p.member = m.member)
UNION ALL
SELECT NULL
WHERE NOT EXISTS (SELECT FROM gesta_lab_meeting.members AS me WHERE me.meeting = $1 AND me.member = $3)
