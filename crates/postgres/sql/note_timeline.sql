-- Notes where the store is. Binds: $1 bigint the cluster's identifier, $2 bigint the timeline, $3 boolean whether
-- synchronous standbys are configured, $4 uuid the incarnation, $5 bigint, $6 bigint, $7 boolean what was noted before.
-- One row, or none if the store has another incarnation, or something else was noted meanwhile.
-- Does not wait for a standby: it may be away, and a note that is lost is made again.
WITH locally AS MATERIALIZED (SELECT set_config('synchronous_commit', 'local', true))
UPDATE store SET cluster = $1, timeline = $2, synchronous = $3
FROM locally
WHERE incarnation = $4
  AND CASE WHEN cluster IS NULL OR timeline IS NULL THEN $5::bigint IS NULL
           ELSE (cluster, timeline, coalesce(synchronous, false)) = ($5, $6, $7) END
RETURNING incarnation
