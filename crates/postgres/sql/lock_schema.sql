-- Lets one process at a time create or migrate a schema. $1 text schema. Held until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('gesta schema ' || $1, 0))
