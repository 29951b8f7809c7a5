-- Raises the version of the cluster. A node that joins at the same moment may not be seen: it finds the version in its
-- first look, and stops if it cannot read it.
-- Binds: $1 integer version before, $2 integer version after. Lock: the row. One row if it was done.
UPDATE clusters SET version = $2
WHERE version = $1 AND $2 > $1
  AND NOT EXISTS (SELECT FROM nodes WHERE state <> 'left' AND $2 NOT BETWEEN protocol_min AND protocol_max)
RETURNING version
