-- The partitions that hold rows of some streams.
--
-- Binds: $1 text schema, $2 text beginning of the partitions' names.
-- Rows:  their names, quoted where needed.
SELECT quote_ident(c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relispartition AND c.relkind = 'r' AND starts_with(c.relname, $2::text)
