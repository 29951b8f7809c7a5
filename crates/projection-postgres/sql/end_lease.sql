-- Ends the lease of a process. $1 uuid node.
DELETE FROM gesta_projections_nodes WHERE node = $1::uuid
