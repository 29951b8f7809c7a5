-- Parked events in the order in which they were parked: $1 text name, $2 int8 version, $3 text key, or null for all,
-- $4 int8 how many at most.
SELECT log, position, key, event, error, attempts, at
FROM gesta_projections_parked
WHERE name = $1::text AND version = $2::int8 AND ($3::text IS NULL OR key = $3)
ORDER BY number
LIMIT $4::int8
