-- Shortens leases of other processes that last much longer than any that is granted now: the clock was set back since.
-- Whoever lives renews its own soon; that of a dead process would keep others away for as long as the clock was set
-- back. Waits for nobody. $1 uuid node, $2 int8 milliseconds from now.
UPDATE gesta_projections_nodes SET until = clock_timestamp() + $2::int8 * interval '1 millisecond'
WHERE node IN (
    SELECT node FROM gesta_projections_nodes
    WHERE node <> $1::uuid AND until > clock_timestamp() + $2::int8 * interval '10 milliseconds'
    FOR UPDATE SKIP LOCKED
)
