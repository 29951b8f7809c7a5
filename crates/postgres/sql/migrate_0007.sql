-- Schema version 7: how each log came to the database in which it lies. Adds columns only, so programs of version 6
-- that have the store open are not disturbed by it. Explained in docs/internals/schema-postgres.md and
-- docs/internals/moving-logs.md.

-- The random number of the stay of the log in its database, and the last row of the log when it came. The same in all
-- databases, as the rest of the map. 0: the log has lain there since the store was made.
ALTER TABLE homes ADD COLUMN stay bigint NOT NULL DEFAULT 0;
ALTER TABLE homes ADD COLUMN stay_position bigint NOT NULL DEFAULT 0;
ALTER TABLE homes ADD COLUMN stay_writer bigint NOT NULL DEFAULT 0;

-- What this database notes for itself: the number of the last stay of the log here. It is written when the log comes,
-- and never with a copy of the map: a database that was set back to a moment before does not have it.
ALTER TABLE homes ADD COLUMN arrived bigint NOT NULL DEFAULT 0;
