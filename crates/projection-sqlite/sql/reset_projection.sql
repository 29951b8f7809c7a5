-- Counts a reset. Binds: 1 name, 2 version.
UPDATE gesta_projections SET resets = resets + 1, events = 0, applied_at = NULL, floor = checkpoint
WHERE name = ?1 AND version = ?2
