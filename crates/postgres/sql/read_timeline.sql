-- Where this server's log stands. One row: the timeline in use, NULL on a standby, and the cluster's identifier; when the
-- server was started.
-- (The timeline of pg_control_checkpoint() is that of the last checkpoint: too old right after a promotion.)
SELECT CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END AS timeline,
       (pg_control_system()).system_identifier AS cluster,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started
