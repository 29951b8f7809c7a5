-- Reads the triggers of a store, for `gesta verify`. Rows: one per trigger (name, its table, as the statement that made
-- the trigger names it, and that statement).
SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' ORDER BY name;
