-- The commands that have no answer yet, in their order.
SELECT number, name, version, command FROM gesta_projections_commands WHERE answer IS NULL ORDER BY number
