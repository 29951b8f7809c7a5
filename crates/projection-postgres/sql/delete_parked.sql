-- Deletes parked events. $1 text name, $2 int8 version, $3 int8[] log, $4 int8[] position.
DELETE FROM gesta_projections_parked p
USING unnest($3::int8[], $4::int8[]) AS e (log, position)
WHERE p.name = $1::text AND p.version = $2::int8 AND p.log = e.log AND p.position = e.position
