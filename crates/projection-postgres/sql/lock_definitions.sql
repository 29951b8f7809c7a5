-- Lets one process at a time change tables of projections, in this database. Held until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('gesta projections', 0))
