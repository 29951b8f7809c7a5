-- What this database holds of a log. $1 smallint log, $2 text the retention role. One row: whether the log is closed, its
-- last position but for the row that closes it, the nodes that have not left, whether the role may be taken, and how many
-- events scavenging has removed.
-- Index: two steps in events_pkey.
SELECT EXISTS (SELECT FROM events WHERE log = $1 AND position = 9223372036854775807) AS closed,
       coalesce((SELECT position FROM events WHERE log = $1 AND position < 9223372036854775807
                 ORDER BY log DESC, position DESC LIMIT 1), 0) AS last,
       (SELECT count(*) FROM nodes WHERE state <> 'left') AS nodes,
       EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $2 AND pg_has_role(oid, 'MEMBER')) AS has_retention,
       (SELECT coalesce(sum(events), 0)::bigint FROM scavenges WHERE log = $1) AS scavenged
