-- Sets what a version is to readers. $1 text name, $2 int8 version, $3 text life.
UPDATE gesta_projections SET life = $3::text WHERE name = $1::text AND version = $2::int8
