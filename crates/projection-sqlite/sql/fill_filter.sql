-- Stores the filter of a version that was registered without one. Binds: 1 filter, 2 name, 3 version.
UPDATE gesta_projections SET filter = ?1 WHERE name = ?2 AND version = ?3
