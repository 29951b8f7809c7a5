-- Stores a command. Binds: 1 name, 2 version, 3 command. Its number is the id of the row.
INSERT INTO gesta_projections_commands (name, version, command, asked_at)
VALUES (?1, ?2, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000)
