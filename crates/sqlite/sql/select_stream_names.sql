-- Names of streams in binary order. Binds: 1 from this name on, included. Index: the one of UNIQUE (name).
-- Rows: as many as the reader steps through (name).
SELECT name FROM streams WHERE name >= ?1 ORDER BY name;
