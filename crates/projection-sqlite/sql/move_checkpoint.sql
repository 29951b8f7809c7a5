-- The fence: the first statement of a batch, which changes one row if the batch may be applied. Binds: 1 checkpoint
-- after, 2 events, 3 name, 4 version, 5 epoch, 6 node (16 bytes), 7 checkpoint before, 8 events before.
UPDATE gesta_projections
SET checkpoint = ?1, events = events + ?2, attempts = 0, attempt_log = NULL, error = NULL,
    applied_at = CASE WHEN ?2 > 0 THEN CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 ELSE applied_at END
WHERE name = ?3 AND version = ?4 AND epoch = ?5 AND owner = ?6 AND checkpoint = ?7 AND events = ?8
  AND state = 'running'
