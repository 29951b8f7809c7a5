-- Forgets all parked events of a version. Binds: 1 name, 2 version.
DELETE FROM gesta_projections_parked WHERE name = ?1 AND version = ?2
