-- Lets a node join as draining from now on, or as up again. It may have left.
-- Binds: $1 text address, $2 boolean. Lock: the node's row. One row if there is such a node.
UPDATE nodes SET held = $2 WHERE address = $1 RETURNING id
