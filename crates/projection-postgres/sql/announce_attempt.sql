-- Announces an attempt that is going to be made. $1 text name, $2 int8 version, $3 int8 epoch, $4 uuid node, $5 int8
-- number of the attempt, $6 int8 events, $7 int8 log, $8 int8 position, $9 bool whether it is a replay. One row if this
-- session may apply events.
UPDATE gesta_projections
SET attempts = $5::int8, attempt_events = $6::int8, attempt_log = $7::int8, attempt_position = $8::int8,
    attempt_is_replay = $9::bool
WHERE name = $1::text AND version = $2::int8 AND epoch = $3::int8 AND owner = $4::uuid AND state = 'running'
RETURNING 1
