-- Older events: first those of other tags, then those of the readers' tags.
--
-- Binds: $1 bigint events of other tags, $2 bigint events of the readers' tags, $3 bigint readers,
--        $4 bytea what follows the number in a message.
-- Rows:  $1 + $2. Locks: ROW EXCLUSIVE on journal.
INSERT INTO journal (persistence_id, sequence_number, message, tags, metadata)
SELECT 'p-' || n / 10, n % 10 + 1,
       int8send(CASE WHEN n < $1 THEN (1::bigint << 40) + n ELSE n - $1 END) || $4::bytea,
       ARRAY[CASE WHEN n < $1 THEN 1000000 + n % 1000 ELSE (n - $1) % $3 END]::integer[],
       '{"serId":4,"serManifest":""}'
FROM generate_series(0, $1::bigint + $2::bigint - 1) AS n
