-- Whether the table with the version of the tables exists where the session looks for tables. One row.
SELECT to_regclass('gesta_projections_schema') IS NOT NULL
