-- Sets the version of the tables. $1 int8 version.
WITH before AS (DELETE FROM gesta_projections_schema)
INSERT INTO gesta_projections_schema (version) VALUES ($1::int8)
