-- Ends what this run's own connections still do, so that nothing holds a lock on the tables to be dropped.
--
-- Binds: $1 text name of this run's connections. Rows: one per connection.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE application_name = $1 AND pid <> pg_backend_pid()
