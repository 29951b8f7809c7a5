-- Who keeps the store from being closed, shut or opened again: sessions, and prepared transactions (without a process),
-- that hold a lock on its tables. An attempt waits for more than half a second, and who came meanwhile waits behind it:
-- so a transaction that is younger has not kept it waiting. (`pg_blocking_pids` would need a second session, which asks
-- while this one waits.) The age of a transaction of another user is hidden from those without the right to see it.
-- No binds. The oldest five.
SELECT l.pid AS process, coalesce(a.application_name, '') AS program,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM (SELECT DISTINCT pid, virtualtransaction FROM pg_catalog.pg_locks
      WHERE locktype = 'relation' AND granted AND pid IS DISTINCT FROM pg_backend_pid()
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND relation IN (to_regclass('events'), to_regclass('streams'), to_regclass('moved_events'),
                         to_regclass('moved_streams'))) AS l
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE coalesce(a.xact_start < clock_timestamp() - interval '0.5 s', true)
ORDER BY seconds DESC NULLS LAST, process
LIMIT 5
