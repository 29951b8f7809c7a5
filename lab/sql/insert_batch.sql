-- The statement of `bound`: Gesta's insert without the condition that makes it safe.
--
-- Binds: one array per column, one element per event, in order.
-- Rows:  as many as there are events.
-- Locks: ROW EXCLUSIVE on events.
--
-- unnest stands in the SELECT list because there it streams; in FROM, as most would write it, it fills one tuplestore per column,
-- and the statement is 13 to 29 % slower.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata)
SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::bigint[]), 1, now(), 1,
       unnest($4::bigint[]), unnest($5::uuid[]), 0, 0, unnest($6::bytea[]), unnest($7::bytea[])
