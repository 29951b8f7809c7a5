-- Shortens leases of other processes that last much longer than any that is granted now: the clock was set back since.
-- Whoever lives renews its own soon; that of a dead process would keep others away for as long as the clock was set
-- back. Binds: 1 node (16 bytes), 2 milliseconds from now.
UPDATE gesta_projections_nodes SET until = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?2
WHERE node <> ?1 AND until > CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?2 * 10
