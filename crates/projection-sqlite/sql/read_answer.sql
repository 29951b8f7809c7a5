-- The answer to a command. Binds: 1 number. One row, with null if there is none yet; none if there is no such command.
SELECT answer FROM gesta_projections_commands WHERE number = ?1
