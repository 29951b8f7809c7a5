-- The version of the tables of projections, in one row.
CREATE TABLE IF NOT EXISTS gesta_projections_schema (version bigint NOT NULL)
