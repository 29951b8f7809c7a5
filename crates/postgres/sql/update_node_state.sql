-- Changes the state of a node; 'left' voids all of its leases. Commits without waiting for standbys or the disk: beats
-- wait for the row, and a look shows whether a crash has lost the change.
-- Binds: $1 integer node, $2 bigint generation, $3 text state. Lock: the node's row. One row if it was done.
UPDATE nodes SET state = $3, generation = CASE WHEN $3 = 'left' THEN 0 ELSE generation END
FROM (SELECT set_config('synchronous_commit', 'off', true) AS level) AS commits
WHERE id = $1 AND generation = $2 AND state <> 'left' AND commits.level = 'off'
RETURNING id
