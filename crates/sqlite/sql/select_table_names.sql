-- Tells an empty file from a store, and both from the file of another program. Rows: one per table (name).
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name;
