-- The version of the tables: one row, or none while they are being made.
SELECT max(version) FROM gesta_projections_schema
