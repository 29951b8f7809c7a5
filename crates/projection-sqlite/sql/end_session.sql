-- Ends a session in good order. Binds: 1 why it stops, or null, 2 name, 3 version, 4 epoch, 5 node (16 bytes).
UPDATE gesta_projections
SET owner = NULL, attempts = 0, attempt_log = NULL, error = coalesce(?1, error),
    state = CASE WHEN ?1 IS NOT NULL AND state = 'running' THEN 'stopped' ELSE state END
WHERE name = ?2 AND version = ?3 AND epoch = ?4 AND owner = ?5
