-- What decides whether a store can move, or go back. No binds. One row: whether there is a note about a move, how many
-- databases the store has, whether a log is being moved, whether virtual streams are switched on, and whether this user
-- owns the tables, may make others, and may take the retention role ($1 text).
SELECT to_regclass('moved') IS NOT NULL AS has_note,
       (SELECT count(*) FROM databases) AS databases,
       (SELECT moving_log IS NOT NULL FROM map) AS moves_log,
       (SELECT is_on FROM virtual_index) AS virtual_streams,
       coalesce((SELECT bool_and(pg_has_role(c.relowner, 'USAGE')) FROM pg_catalog.pg_class AS c
                 WHERE c.oid IN (to_regclass('events'), to_regclass('streams'), to_regclass('store'))), false)
           AND has_schema_privilege(current_schema(), 'CREATE') AS is_owner,
       EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1 AND pg_has_role(oid,
                  CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)) AS has_retention
