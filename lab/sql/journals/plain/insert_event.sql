-- One event; also for nested partitions, where PostgreSQL finds the partition.
--
-- Binds: $1 text persistence_id, $2 bigint sequence_number, $3 jsonb metadata, $4 bytea message.
-- Rows:  1. A sequence number that is there already violates the primary key.
-- Locks: ROW EXCLUSIVE on journal (and on the partition).
INSERT INTO journal (persistence_id, sequence_number, deleted, message, tags, metadata)
VALUES ($1, $2, false, $4, '{}', $3)
