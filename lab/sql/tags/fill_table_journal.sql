-- Older events: first those of other tags, then those of the readers' tags.
--
-- Binds: $1 bigint events of other tags, $2 bigint events of the readers' tags, $3 bigint readers,
--        $4 bytea what follows the number in a message.
-- Rows:  $1 + $2 in tags. Locks: ROW EXCLUSIVE on journal and tags.
WITH new AS (
    INSERT INTO journal (deleted, persistence_id, sequence_number, created, message, identifier, manifest)
    SELECT false, 'p-' || n / 10, n % 10 + 1, 1700000000000 + n,
           int8send(CASE WHEN n < $1 THEN (1::bigint << 40) + n ELSE n - $1 END) || $4::bytea, 4, ''
    FROM generate_series(0, $1::bigint + $2::bigint - 1) AS n
    RETURNING ordering, persistence_id, sequence_number, created - 1700000000000 AS n
)
INSERT INTO tags (ordering_id, tag, persistence_id, sequence_nr)
SELECT ordering, CASE WHEN n < $1 THEN 'other-' || n % 1000 ELSE 'lab-' || (n - $1) % $3 END,
       persistence_id, sequence_number
FROM new
