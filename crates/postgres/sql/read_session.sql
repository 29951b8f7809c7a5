-- What the session relies on, as the server has it. One row. The limits are what an administrator has set, unless the
-- session has set its own: in milliseconds, those of keep-alive in seconds and in probes; 0 is none.
SELECT pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only') AS read_only,
       current_setting('server_version_num')::integer AS version_number,
       current_setting('server_version') AS version,
       current_setting('server_encoding') AS encoding,
       current_setting('transaction_isolation') AS isolation,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS standby_names,
       pg_backend_pid() AS backend,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock,
       ARRAY(SELECT (extract(epoch FROM current_setting(l.name, true)::interval) * l.units)::bigint
             FROM unnest(ARRAY['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
                               'tcp_keepalives_idle', 'tcp_keepalives_interval', 'tcp_keepalives_count',
                               'tcp_user_timeout'],
                         ARRAY[1000, 1000, 1000, 1, 1, 1, 1000]) WITH ORDINALITY AS l(name, units, place)
             ORDER BY l.place) AS limits
