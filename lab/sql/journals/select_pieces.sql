-- Partitions that can be dropped by one statement without taking all of a server's locks; the lowest first.
--
-- Binds: $1 text schema, $2 bigint how many at most.
-- Rows:  one: their names, quoted and with commas between; null when none is left.
SELECT string_agg(format('%I.%I', p.nspname, p.relname), ', ')
FROM (SELECT n.nspname, c.relname
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE n.nspname = $1::text AND c.relispartition AND c.relkind IN ('r', 'p')
      ORDER BY c.relkind = 'p'
      LIMIT $2::bigint) AS p
