-- How many events are parked, up to $3: $1 text name, $2 int8 version, $3 int8 how many at most. One row.
SELECT count(*)
FROM (
    SELECT 1 FROM gesta_projections_parked WHERE name = $1::text AND version = $2::int8 LIMIT $3::int8
) AS parked
