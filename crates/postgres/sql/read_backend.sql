-- What a session does. Bind: the process id of its backend (integer). At most one row, none if the session has ended:
-- whether it waits for its client, and for how many milliseconds it has done what it does; NULL if the server does not
-- tell.
SELECT state LIKE 'idle%' AS waits,
       (extract(epoch FROM clock_timestamp() - state_change) * 1000)::bigint AS for_ms
FROM pg_stat_activity
WHERE pid = $1
