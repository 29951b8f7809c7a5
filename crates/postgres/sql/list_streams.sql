-- Names between two bounds in binary order, without those of the system.
-- Binds: $1 text not below this, $2 text above this, $3 text below this, $4 bigint rows at most.
-- Index: two ranges of streams_name_key; names that start with `$` lie between them and are never looked at.
SELECT name FROM (
    (SELECT name FROM streams WHERE name >= $1 AND name > $2 AND name < $3 AND name < '$' ORDER BY name LIMIT $4)
    UNION ALL
    (SELECT name FROM streams WHERE name >= $1 AND name > $2 AND name < $3 AND name >= '%' ORDER BY name LIMIT $4)
) AS found
ORDER BY name LIMIT $4
