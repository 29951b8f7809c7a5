-- Voids all leases of a node that has not beaten since. A beat that is not committed yet wins: all conditions are on the
-- row that is changed, so they are checked again after the wait for its lock.
-- Commits without waiting for standbys or the disk: beats wait for the row, and a death that a crash loses is found again.
-- Binds: $1 integer node, $2 bigint generation, $3 bigint beat. Lock: the node's row. One row if it was done.
UPDATE nodes SET generation = 0, state = 'left'
FROM (SELECT set_config('synchronous_commit', 'off', true) AS level) AS commits
WHERE id = $1 AND generation = $2 AND beat = $3 AND state <> 'left' AND commits.level = 'off'
RETURNING id
