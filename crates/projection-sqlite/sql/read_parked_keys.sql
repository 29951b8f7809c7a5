-- The keys of a version that have parked events, in order. Binds: 1 name, 2 version.
SELECT DISTINCT key FROM gesta_projections_parked WHERE name = ?1 AND version = ?2 AND key IS NOT NULL ORDER BY key
