-- Tells whether the tables of projections are there. Binds: none. One row: 1 or 0.
SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'gesta_projections_schema'
