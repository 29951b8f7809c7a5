-- What the session relies on, as the server has it. One row.
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
       pg_backend_pid() AS backend
