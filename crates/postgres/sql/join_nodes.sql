-- Registers a node, or registers it again with the same address. Nodes that left long ago are forgotten: those whose
-- number is more than 1,000 below the greatest. A node that is held joins as draining.
-- Binds: $1 text address, $2 integer weight, $3 text build, $4 and $5 integer protocols, $6 bigint generation,
-- $7 bigint beat. Lock: the node's row. One row: the node's number.
WITH forgotten AS (
    DELETE FROM nodes
    WHERE state = 'left' AND NOT held AND address <> $1 AND id < (SELECT max(id) - 1000 FROM nodes)
)
INSERT INTO nodes (address, weight, build, protocol_min, protocol_max, generation, beat, state, unreachable, started, beat_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'up', '{}', clock_timestamp(), clock_timestamp())
ON CONFLICT (address) DO UPDATE
SET weight = EXCLUDED.weight, build = EXCLUDED.build, protocol_min = EXCLUDED.protocol_min,
    protocol_max = EXCLUDED.protocol_max, generation = EXCLUDED.generation, beat = EXCLUDED.beat,
    state = CASE WHEN nodes.held THEN 'draining' ELSE EXCLUDED.state END, unreachable = EXCLUDED.unreachable, started = EXCLUDED.started, beat_at = EXCLUDED.beat_at
RETURNING id
