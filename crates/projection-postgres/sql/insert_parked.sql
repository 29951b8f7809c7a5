-- Puts events aside. $1 text name, $2 int8 version; arrays with an element for each event: $3 int8[] log, $4 int8[]
-- position, $5 text[] key, $6 uuid[] event, $7 text[] error, $8 int8[] attempts.
INSERT INTO gesta_projections_parked (name, version, log, position, key, event, error, attempts)
SELECT $1::text, $2::int8, e.log, e.position, e.key, e.event, e.error, e.attempts
FROM unnest($3::int8[], $4::int8[], $5::text[], $6::uuid[], $7::text[], $8::int8[])
     WITH ORDINALITY AS e (log, position, key, event, error, attempts, number)
ORDER BY e.number
ON CONFLICT (name, version, log, position) DO UPDATE SET error = excluded.error, attempts = excluded.attempts
