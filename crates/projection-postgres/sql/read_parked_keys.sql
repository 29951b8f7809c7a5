-- The keys of parked events, each once. $1 text name, $2 int8 version.
SELECT DISTINCT key COLLATE "C" FROM gesta_projections_parked
WHERE name = $1::text AND version = $2::int8 AND key IS NOT NULL
ORDER BY 1
