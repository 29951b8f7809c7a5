-- What a process says at a gathering.
--
-- Binds: $1 integer gathering, $2 integer member, $3 text body; {schema} is the meeting's. Rows: 1.
INSERT INTO {schema}.posts (gathering, member, body)
VALUES ($1, $2, $3)
