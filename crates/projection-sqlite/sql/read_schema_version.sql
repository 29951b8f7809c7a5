-- The version of the tables. Binds: none. One row.
SELECT version FROM gesta_projections_schema
