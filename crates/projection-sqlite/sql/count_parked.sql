-- Counts the parked events of a version, up to a number. Binds: 1 name, 2 version, 3 this number. One row.
SELECT count(*) FROM (SELECT 1 FROM gesta_projections_parked WHERE name = ?1 AND version = ?2 LIMIT ?3)
