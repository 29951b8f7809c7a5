-- Several events of one entity; also for nested partitions, where PostgreSQL finds the partition.
--
-- Binds: $1 text persistence_id, $2 bigint sequence_number of the first, $3 jsonb metadata of each,
--        $4 bytea[] messages, in order.
-- Rows:  as many as there are events. A sequence number that is there already violates the primary key.
-- Locks: ROW EXCLUSIVE on journal (and on the partition).
INSERT INTO journal (persistence_id, sequence_number, deleted, message, tags, metadata)
SELECT $1::text, $2::bigint + e.ordinal - 1, false, e.message, '{}', $3::jsonb
FROM unnest($4::bytea[]) WITH ORDINALITY AS e(message, ordinal)
