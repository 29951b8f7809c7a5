-- What this role lacks to keep and to read projections where the session looks for tables, and what grants it: a
-- sentence a row, none if it lacks nothing there. No binds, catalog only.
WITH places AS (
    SELECT n.oid, n.nspname
    FROM unnest(string_to_array(current_setting('search_path'), ',')) AS p (name)
    JOIN pg_catalog.pg_namespace AS n
      ON n.nspname = CASE btrim(p.name) WHEN '"$user"' THEN current_user::text ELSE replace(btrim(p.name), '"', '') END
)
SELECT format('the role %1$I may not %2$s the schema %3$I: GRANT USAGE, CREATE ON SCHEMA %3$I TO %1$I',
              current_user,
              CASE WHEN has_schema_privilege(p.oid, 'USAGE') THEN 'make tables in' ELSE 'use' END,
              p.nspname)
FROM places AS p
WHERE NOT (has_schema_privilege(p.oid, 'USAGE') AND has_schema_privilege(p.oid, 'CREATE'))
UNION ALL
SELECT format('the role %1$I may not %2$s the table %3$I.%4$I: GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE %3$I.%4$I TO %1$I',
              current_user,
              CASE WHEN has_any_column_privilege(c.oid, 'SELECT') THEN 'change' ELSE 'read' END,
              p.nspname, c.relname)
FROM places AS p
JOIN pg_catalog.pg_class AS c ON c.relnamespace = p.oid AND c.relname LIKE 'gesta\_projections%' AND c.relkind = 'r'
WHERE has_schema_privilege(p.oid, 'USAGE')
  AND NOT (has_any_column_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
           AND has_any_column_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
