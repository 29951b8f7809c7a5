-- The commands that have no answer, in their order. Binds: none.
SELECT number, name, version, command FROM gesta_projections_commands WHERE answer IS NULL ORDER BY number
