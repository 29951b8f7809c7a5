-- Claims logs whose lease has not changed since it was seen.
-- Binds: $1 integer owner, $2 bigint generation, $3 smallint[] logs, $4 bigint[] epochs seen, $5 bigint[] new epochs.
-- Locks: the leases, in order of the logs, so that two claimers do not deadlock. One row for each log that was got.
WITH claims AS (
    SELECT * FROM unnest($3::smallint[], $4::bigint[], $5::bigint[]) AS c(log, seen, epoch)
), locked AS (
    SELECT l.log FROM leases AS l JOIN claims AS c ON c.log = l.log AND c.seen = l.epoch
    ORDER BY l.log FOR UPDATE OF l
), claimed AS (
    UPDATE leases AS l
    SET owner = $1, generation = $2, epoch = c.epoch, next_owner = NULL, since = clock_timestamp()
    FROM claims AS c, locked AS k
    WHERE l.log = c.log AND k.log = c.log AND l.epoch = c.seen
    RETURNING l.log, l.epoch
), recorded AS (
    INSERT INTO moves (log, to_node, epoch, reason, at)
    SELECT log, $1, epoch, 'claim', clock_timestamp() FROM claimed
), forgotten AS (
    DELETE FROM moves WHERE number <= (SELECT max(number) - 1000 FROM moves)
)
SELECT log FROM claimed
