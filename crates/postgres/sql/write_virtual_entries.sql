-- Stores the entries of a part of the log, if nobody else has looked at it, and if it is a part of this log.
--
-- Binds: $1 bigint position up to which the log had been looked at; $2 bigint position and $3 bigint writer of the last
--        event of the part. For each virtual stream, in the order of the names: $4 bigint[] its number if it is new,
--        $5 text[] its name, $6 bigint[] count of its entries, $7 bigint[] how many entries stand before them in $8.
--        $8 bigint[] the positions of all entries.
-- Rows:  one, with 1 if they are stored, or 0.
-- Locks: the row of virtual_index, so that of two processes one waits for the other's end, and then finds another
--        position; the rows of the streams, in the order of the names.
-- Index: one look into events_pkey and, for each stream, into virtual_streams_name_key; inserts into three.
WITH moved AS (
    UPDATE virtual_index SET position = $2
    WHERE is_on AND position = $1
      AND EXISTS (SELECT 1 FROM events AS e WHERE e.log = 0 AND e.position = $2 AND e.writer = $3)
    RETURNING 1
), streams AS (
    INSERT INTO virtual_streams AS stored (id, name, next_revision)
    SELECT new.id, new.name, new.count
    FROM unnest($4::bigint[], $5::text[], $6::bigint[]) WITH ORDINALITY AS new(id, name, count, place)
    WHERE EXISTS (SELECT 1 FROM moved)
    ORDER BY new.place
    ON CONFLICT (name) DO UPDATE SET next_revision = stored.next_revision + excluded.next_revision
    RETURNING stored.id, stored.name, stored.next_revision
), placed AS (
    SELECT s.id, s.next_revision, row_number() OVER (ORDER BY s.name) AS place FROM streams AS s
), entries AS (
    INSERT INTO virtual_entries (stream, revision, position)
    SELECT p.id, p.next_revision - ($6::bigint[])[p.place] + n.number, ($8::bigint[])[($7::bigint[])[p.place] + n.number + 1]
    FROM placed AS p
    CROSS JOIN LATERAL generate_series(0, ($6::bigint[])[p.place] - 1) AS n(number)
)
SELECT count(*) FROM moved
