-- The settings that what is acknowledged rests on, as the server has them now, its clock, and the incarnation. One row,
-- no binds.
SELECT current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS standby_names,
       current_setting('transaction_read_only') AS read_only,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock,
       (SELECT incarnation FROM store) AS incarnation
