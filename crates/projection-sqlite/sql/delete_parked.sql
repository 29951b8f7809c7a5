-- Forgets a parked event. Binds: 1 name, 2 version, 3 log, 4 position.
DELETE FROM gesta_projections_parked WHERE name = ?1 AND version = ?2 AND log = ?3 AND position = ?4
