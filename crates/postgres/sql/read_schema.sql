-- Which of the store's objects exist. $1 text schema. One row, catalog only.
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1) AS has_schema,
       EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = 'store' AND c.relkind = 'r') AS has_store
