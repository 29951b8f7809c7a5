-- What a process says at a gathering.
--
-- Binds: $1 text meeting, $2 integer gathering, $3 integer member, $4 text body. Rows: 1.
INSERT INTO gesta_lab_meeting.posts (meeting, gathering, member, body)
VALUES ($1, $2, $3, $4)
