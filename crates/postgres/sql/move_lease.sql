-- Ends a tenure: hands the log over to another node, or to nobody.
-- Binds: $1 smallint log, $2 integer owner, $3 bigint generation, $4 bigint epoch; $5 integer new owner or NULL,
-- $6 bigint its generation, $7 text reason. Lock: the lease. One row if it was done.
WITH moved AS (
    UPDATE leases
    SET owner = $5, generation = $6, epoch = epoch + 1, next_owner = NULL, since = clock_timestamp()
    WHERE log = $1 AND owner = $2 AND generation = $3 AND epoch = $4
    RETURNING log, epoch
), recorded AS (
    INSERT INTO moves (log, to_node, epoch, reason, at)
    SELECT log, $5, epoch, $7, clock_timestamp() FROM moved
), forgotten AS (
    DELETE FROM moves WHERE number <= (SELECT max(number) - 1000 FROM moves)
)
SELECT log FROM moved
