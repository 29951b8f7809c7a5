-- The row of a version. Binds: 1 name, 2 version. Its columns are those of read_projections.sql.
SELECT name, version, life, state, epoch, owner, checkpoint, floor, made_with, resets, events, attempts, attempt_events,
       attempt_log, attempt_position, attempt_is_replay, applied_at, error, read_as, filter, definition,
       EXISTS (
           SELECT 1 FROM gesta_projections_nodes
           WHERE node = owner AND until > CAST(unixepoch('subsec') * 1000 AS INTEGER)
       )
FROM gesta_projections
WHERE name = ?1 AND version = ?2
