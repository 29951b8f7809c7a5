-- Asks the owner of a log to hand it over, or withdraws that.
-- Binds: $1 smallint log, $2 bigint epoch, $3 integer node or NULL. Lock: the lease. One row if it was done.
UPDATE leases SET next_owner = $3 WHERE log = $1 AND epoch = $2
RETURNING log
