-- The statements that give the rights on a view anew, after it was dropped and made again. $1 text name of the view, as
-- SQL writes it.
SELECT format('GRANT %s ON TABLE %s TO %s%s', a.privilege_type, c.oid::regclass,
              CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
              CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM pg_class c, aclexplode(c.relacl) a
WHERE c.oid = to_regclass($1::text) AND c.relkind = 'v' AND a.grantee <> c.relowner
