-- The fence: the first statement of a batch, which gives one row if the batch may be applied. $1 text name,
-- $2 int8 version, $3 int8 epoch, $4 uuid node, $5 text checkpoint before, $6 text checkpoint after, $7 int8 events,
-- $8 int8 events before.
UPDATE gesta_projections
SET checkpoint = $6::text, events = events + $7::int8, attempts = 0, attempt_log = NULL, error = NULL,
    applied_at = CASE WHEN $7::int8 > 0 THEN clock_timestamp() ELSE applied_at END
WHERE name = $1::text AND version = $2::int8 AND epoch = $3::int8 AND owner = $4::uuid AND checkpoint = $5::text
  AND events = $8::int8 AND state = 'running'
RETURNING 1
