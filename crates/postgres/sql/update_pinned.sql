-- Pins a log to a node, or to none. Binds: $1 smallint log, $2 integer node or NULL. Lock: the lease. One row.
UPDATE leases SET pinned = $2 WHERE log = $1
