-- Limits how long the statements of this transaction wait for locks. Those that begin later wait behind them, so it is
-- never more than 3 s. It is longer than deadlock_timeout, after which PostgreSQL ends an autovacuum that is waited
-- for: with the same time the attempt would end at that moment, every time. No binds. One row.
SELECT set_config('lock_timeout', least(setting::bigint + 500, 3000)::text, true)
FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'
