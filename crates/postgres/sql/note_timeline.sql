-- Notes where the store is. Binds: $1 bigint the cluster's identifier, $2 bigint the timeline, $3 boolean whether
-- synchronous standbys are configured, $4 uuid the incarnation. One row, or none if that is noted, or the store has
-- another incarnation.
UPDATE store SET cluster = $1, timeline = $2, synchronous = $3
WHERE incarnation = $4 AND (cluster, timeline, synchronous) IS DISTINCT FROM ($1, $2, $3)
