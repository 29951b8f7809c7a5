-- The partition of one entity.
--
-- Binds: none, for DDL takes none. Put in by the program: {name} made of the entity's id, with letters, digits and _
--        alone; {id} the entity's id as the inside of a string constant.
-- Locks: ACCESS EXCLUSIVE on journal.
CREATE TABLE IF NOT EXISTS j_{name} PARTITION OF journal FOR VALUES IN ('{id}') PARTITION BY RANGE (sequence_number)
