-- Registers a version, which begins at its floor. Binds: 1 name, 2 version, 3 life, 4 checkpoint and floor,
-- 5 what it was made with, 6 names that readers use, with commas between them, 7 filter, 8 definition of an index, or
-- null.
INSERT INTO gesta_projections (name, version, life, state, checkpoint, floor, made_with, read_as, filter, definition)
VALUES (?1, ?2, ?3, 'running', ?4, ?4, ?5, ?6, ?7, ?8)
