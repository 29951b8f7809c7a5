-- Deletes all parked events of a version. $1 text name, $2 int8 version.
DELETE FROM gesta_projections_parked WHERE name = $1::text AND version = $2::int8
