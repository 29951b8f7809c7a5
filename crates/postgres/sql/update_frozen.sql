-- Freezes all logs, or ends that. Binds: $1 boolean.
-- Locks: all leases, in order of the logs, so that it does not deadlock with claims.
WITH locked AS (
    SELECT log FROM leases ORDER BY log FOR UPDATE
)
UPDATE leases AS l SET frozen = $1 FROM locked AS k WHERE l.log = k.log
