-- Parks an event, or says why it is still parked. Binds: 1 name, 2 version, 3 log, 4 position, 5 key, or null, 6 event
-- (16 bytes), 7 error, 8 attempts.
INSERT INTO gesta_projections_parked (name, version, log, position, key, event, error, attempts, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000)
ON CONFLICT DO UPDATE SET error = excluded.error, attempts = excluded.attempts
