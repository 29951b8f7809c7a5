-- Changes the state of a node; 'left' voids all of its leases.
-- Binds: $1 integer node, $2 bigint generation, $3 text state. Lock: the node's row. One row if it was done.
UPDATE nodes SET state = $3, generation = CASE WHEN $3 = 'left' THEN 0 ELSE generation END
WHERE id = $1 AND generation = $2 AND state <> 'left'
RETURNING id
