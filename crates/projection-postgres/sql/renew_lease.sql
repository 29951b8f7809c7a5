-- Renews the lease of a process, and forgets processes that ended a day ago. $1 uuid node, $2 text name, $3 int8
-- milliseconds from now.
WITH gone AS (
    -- Waits for nobody: two processes may do this at once.
    DELETE FROM gesta_projections_nodes WHERE node IN (
        SELECT node FROM gesta_projections_nodes
        WHERE until < clock_timestamp() - interval '1 day' AND node <> $1::uuid
        FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO gesta_projections_nodes (node, name, until)
VALUES ($1::uuid, $2::text, clock_timestamp() + $3::int8 * interval '1 millisecond')
ON CONFLICT (node) DO UPDATE SET name = excluded.name, until = excluded.until
