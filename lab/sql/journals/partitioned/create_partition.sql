-- One partition of positions, and its unique key, which holds within the partition only.
--
-- Binds: none, for DDL takes none. Put in by the program, numbers all of them: {number} of the partition, {from} its
--        first position, {to} the first position after it.
-- Locks: ACCESS EXCLUSIVE on journal. Two writers may come at once: one of them is told that the table exists.
CREATE TABLE IF NOT EXISTS j_{number} PARTITION OF journal FOR VALUES FROM ({from}) TO ({to});
CREATE UNIQUE INDEX IF NOT EXISTS j_{number}_persistence_sequence_idx ON j_{number} (persistence_id, sequence_number);
