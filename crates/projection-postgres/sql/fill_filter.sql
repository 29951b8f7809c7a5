-- Stores the filter of a version that was registered without one. $1 text name, $2 int8 version, $3 text filter.
UPDATE gesta_projections SET filter = $3::text WHERE name = $1::text AND version = $2::int8 AND filter IS NULL
