-- Lets one process at a time move logs of the store. $1 text schema. Held until the session ends, so whoever has died
-- holds it until what he has begun is stored or taken back.
SELECT pg_advisory_lock(hashtextextended('gesta move ' || $1, 0))
