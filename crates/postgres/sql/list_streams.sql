-- Names between two bounds in binary order, without those of the system.
-- Binds: $1 text not below this, $2 text above this or NULL, $3 text below this or NULL, $4 bigint rows at most.
-- Index: two ranges of streams_name_key; names that start with `$` lie between them and are never looked at.
SELECT name FROM (
    (SELECT name FROM streams
     WHERE name >= $1 AND ($2::text IS NULL OR name > $2) AND ($3::text IS NULL OR name < $3) AND name < '$'
     ORDER BY name LIMIT $4)
    UNION ALL
    (SELECT name FROM streams
     WHERE name >= $1 AND ($2 IS NULL OR name > $2) AND ($3 IS NULL OR name < $3) AND name >= '%'
     ORDER BY name LIMIT $4)
) AS found
ORDER BY name LIMIT $4
