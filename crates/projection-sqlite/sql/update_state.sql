-- Sets state and reason. Binds: 1 state, 2 why, or null, 3 name, 4 version. Changes one row if there is such a version
-- with rows.
UPDATE gesta_projections SET state = ?1, error = ?2 WHERE name = ?3 AND version = ?4 AND life <> 'retired'
