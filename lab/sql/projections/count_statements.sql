-- Statements of this database so far, those that read events, and the time of all in milliseconds.
SELECT coalesce(sum(calls), 0)::int8,
       coalesce(sum(calls) FILTER (WHERE query ~ 'FROM events'), 0)::int8,
       coalesce(sum(total_exec_time), 0)::float8
FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query NOT LIKE '%pg_stat_statements%'
