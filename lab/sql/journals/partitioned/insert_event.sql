-- One event at a position.
--
-- Binds: $1 text persistence_id, $2 bigint sequence_number, $3 jsonb metadata, $4 bytea message, $5 bigint ordering.
-- Rows:  1. A sequence number that is there already in the same partition violates its unique key.
-- Locks: ROW EXCLUSIVE on journal and on the partition.
INSERT INTO journal (ordering, persistence_id, sequence_number, deleted, message, tags, metadata)
VALUES ($5, $1, $2, false, $4, '{}', $3)
