-- Reads the triggers of a store, for `gesta verify`. Rows: one per trigger (name, the statement that made it).
SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' ORDER BY name;
