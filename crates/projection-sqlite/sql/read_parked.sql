-- Parked events of a version, in the order in which they were parked. Binds: 1 name, 2 version, 3 key, or null for all,
-- 4 greatest number of rows.
SELECT log, position, key, event, error, attempts, at FROM gesta_projections_parked
WHERE name = ?1 AND version = ?2 AND (?3 IS NULL OR key = ?3)
ORDER BY number LIMIT ?4
