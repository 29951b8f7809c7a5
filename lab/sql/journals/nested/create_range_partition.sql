-- One range of sequence numbers in the partition of one entity.
--
-- Binds: none, for DDL takes none. Put in by the program: {name} as in `create_entity_partition`, {number} of the range,
--        {from} its first sequence number, {to} the first after it.
-- Locks: ACCESS EXCLUSIVE on the entity's partition.
CREATE TABLE IF NOT EXISTS j_{name}_{number} PARTITION OF j_{name} FOR VALUES FROM ({from}) TO ({to})
