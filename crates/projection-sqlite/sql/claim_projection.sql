-- Begins a session. Binds: 1 epoch of the session, 2 node (16 bytes), 3 name, 4 version.
UPDATE gesta_projections SET epoch = ?1, owner = ?2 WHERE name = ?3 AND version = ?4
