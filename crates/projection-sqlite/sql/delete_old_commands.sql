-- Forgets commands that were answered a week ago. No binds. Reads all commands.
DELETE FROM gesta_projections_commands
WHERE answer IS NOT NULL AND asked_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 - 604800000000
