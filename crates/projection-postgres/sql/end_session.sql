-- Ends a session in good order. $1 text name, $2 int8 version, $3 int8 epoch, $4 uuid node, $5 text why it stops, or
-- null.
UPDATE gesta_projections
SET owner = NULL, attempts = 0, attempt_log = NULL, error = coalesce($5::text, error),
    state = CASE WHEN $5::text IS NOT NULL AND state = 'running' THEN 'stopped' ELSE state END
WHERE name = $1::text AND version = $2::int8 AND epoch = $3::int8 AND owner = $4::uuid
