-- Writes the row that closes a log: above every position, so it is the last row of the log while it is there, and nothing
-- can be chained to it. $1 smallint log. One row; none if the log is closed already.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type, data, metadata)
VALUES (9223372036854775807, 9223372036854775807, 0, 9223372036854775807, now(), 0, 0, gen_random_uuid(), $1, 1, '', '')
ON CONFLICT (log, position) DO NOTHING
