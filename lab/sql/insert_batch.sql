-- The statement of `bound`: Gesta's insert without the condition that makes it safe.
--
-- Binds: $1 bigint position before the first event; $2.. one array per column, one element per event, in order.
-- Rows:  as many as there are events.
-- Locks: ROW EXCLUSIVE on events.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata)
SELECT $1::bigint + e.ordinal, e.stream, e.revision, 1, now(), 1, e.checksum, e.event_id, 0, 0, e.data, e.metadata
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::uuid[], $6::bytea[], $7::bytea[])
     WITH ORDINALITY AS e(stream, revision, checksum, event_id, data, metadata, ordinal)
