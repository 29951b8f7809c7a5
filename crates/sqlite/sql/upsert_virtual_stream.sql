-- Adds entries to a virtual stream, which begins with them if there is none. Binds: 1 its number if it is new, 2 name,
-- 3 count of the entries. Write lock held. Rows: one (number, next revision after these entries).
INSERT INTO virtual_streams (id, name, next_revision) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET next_revision = next_revision + excluded.next_revision
RETURNING id, next_revision;
