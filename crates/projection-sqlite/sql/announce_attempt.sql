-- Announces an attempt that is going to be made. Binds: 1 number of the attempt, 2 events, 3 log, 4 position, 5 whether
-- it is a replay, 6 name, 7 version, 8 epoch, 9 node (16 bytes). Changes one row if this session may apply events.
UPDATE gesta_projections
SET attempts = ?1, attempt_events = ?2, attempt_log = ?3, attempt_position = ?4, attempt_is_replay = ?5
WHERE name = ?6 AND version = ?7 AND epoch = ?8 AND owner = ?9 AND state = 'running'
