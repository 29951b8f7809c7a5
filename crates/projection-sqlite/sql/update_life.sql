-- Says what a version is to readers. Binds: 1 life, 2 name, 3 version.
UPDATE gesta_projections SET life = ?1 WHERE name = ?2 AND version = ?3
