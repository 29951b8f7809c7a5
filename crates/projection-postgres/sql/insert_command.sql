-- Stores a command, and forgets those that were answered a week ago. $1 text name, $2 int8 version, $3 text command.
-- One row: its number.
WITH gone AS (
    DELETE FROM gesta_projections_commands
    WHERE answer IS NOT NULL AND asked_at < clock_timestamp() - interval '7 days'
)
INSERT INTO gesta_projections_commands (name, version, command) VALUES ($1::text, $2::int8, $3::text)
RETURNING number
