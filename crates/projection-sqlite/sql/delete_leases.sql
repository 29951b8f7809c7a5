-- Ends the lease of a process that gives it up (its time is 0), and forgets processes that ended a day ago.
-- Binds: 1 node (16 bytes), 2 milliseconds from now.
DELETE FROM gesta_projections_nodes
WHERE until < CAST(unixepoch('subsec') * 1000 AS INTEGER) - 86400000 OR (node = ?1 AND ?2 = 0)
