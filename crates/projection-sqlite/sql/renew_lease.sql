-- Renews the lease of a process. Binds: 1 node (16 bytes), 2 name, 3 milliseconds from now.
INSERT INTO gesta_projections_nodes VALUES (?1, ?2, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3)
ON CONFLICT DO UPDATE SET name = excluded.name, until = excluded.until
