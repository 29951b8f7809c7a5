-- Counts an attempt that is going to be made. $1 text name, $2 int8 version, $3 int8 epoch, $4 uuid node, $5 int8
-- events. One row if this session may apply events.
UPDATE gesta_projections SET attempts = attempts + 1, attempt_events = $5::int8
WHERE name = $1::text AND version = $2::int8 AND epoch = $3::int8 AND owner = $4::uuid AND state = 'running'
RETURNING 1
