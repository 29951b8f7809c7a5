-- Ends a version whose rows are gone, and the session of its owner. Binds: 1 name, 2 version.
UPDATE gesta_projections SET life = 'retired', state = 'paused', epoch = epoch + 1, owner = NULL
WHERE name = ?1 AND version = ?2
