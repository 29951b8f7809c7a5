-- The rows of all versions, of one projection ($1 text name), or of one version ($2 int8 version): no locks.
SELECT p.name, p.version, p.life, p.state, p.epoch, p.owner,
       coalesce(n.until > clock_timestamp(), false) AS owned,
       p.checkpoint, p.floor, p.made_with, p.resets, p.events, p.attempts, p.attempt_events, p.attempt_log,
       p.attempt_position, p.attempt_is_replay, p.applied_at, p.error, p.read_as, p.filter, p.definition
FROM gesta_projections p LEFT JOIN gesta_projections_nodes n ON n.node = p.owner
WHERE ($1::text IS NULL OR p.name = $1) AND ($2::int8 IS NULL OR p.version = $2)
ORDER BY p.name COLLATE "C", p.version
