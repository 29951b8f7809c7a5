-- Several events of one entity at their positions.
--
-- Binds: $1 text persistence_id, $2 bigint sequence_number of the first, $3 jsonb metadata of each,
--        $4 bytea[] messages and $5 bigint[] orderings, in order.
-- Rows:  as many as there are events. A sequence number that is there already in the same partition violates its unique key.
-- Locks: ROW EXCLUSIVE on journal and on the partition.
INSERT INTO journal (ordering, persistence_id, sequence_number, deleted, message, tags, metadata)
SELECT e.ordering, $1::text, $2::bigint + e.ordinal - 1, false, e.message, '{}', $3::jsonb
FROM unnest($4::bytea[], $5::bigint[]) WITH ORDINALITY AS e(message, ordering, ordinal)
