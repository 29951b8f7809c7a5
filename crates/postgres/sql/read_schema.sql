-- Which of the store's objects exist, and whether this role may read them. $1 text schema. One row, catalog only.
-- A schema that a role may not use is left out of its search path, so that PostgreSQL takes the tables for missing.
SELECT n.oid IS NOT NULL AS has_schema,
       c.oid IS NOT NULL AS has_store,
       quote_ident(current_user) AS role,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false) AS may_use,
       coalesce(has_any_column_privilege(c.oid, 'SELECT'), false) AS may_read
FROM (VALUES (1)) AS one (row)
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = $1
LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'store' AND c.relkind = 'r'
