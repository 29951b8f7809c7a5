-- Sets state and reason. $1 text name, $2 int8 version, $3 text state, $4 text why, or null. One row if there is such a
-- version with rows.
UPDATE gesta_projections SET state = $3::text, error = $4::text
WHERE name = $1::text AND version = $2::int8 AND life <> 'retired'
RETURNING 1
