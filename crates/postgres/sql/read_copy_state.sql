-- What this database holds of a log. $1 smallint log, $2 text the retention role. One row: whether the log is closed,
-- its last row but for the one that closes it (NULL if there is none), whether there are names of later events, the
-- nodes that have not left, whether the role may be taken, and how many events scavenging has removed.
-- Index: two steps in events_pkey, one in streams_pkey and one in types_pkey.
SELECT EXISTS (SELECT FROM events WHERE log = $1 AND position = 9223372036854775807) AS closed,
       e.position, e.writer, e.stream, e.revision,
       EXISTS (SELECT FROM streams WHERE log = $1 AND id > coalesce(e.position, 0))
           OR EXISTS (SELECT FROM types WHERE log = $1 AND id > coalesce(e.position, 0)) AS later_names,
       (SELECT count(*) FROM nodes WHERE state <> 'left') AS nodes,
       EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $2 AND pg_has_role(oid,
                  CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)) AS has_retention,
       (SELECT coalesce(sum(events), 0)::bigint FROM scavenges WHERE log = $1) AS scavenged
FROM store AS s
LEFT JOIN LATERAL (SELECT position, writer, stream, revision FROM events WHERE log = $1 AND position < 9223372036854775807
                   ORDER BY log DESC, position DESC LIMIT 1) AS e ON true
