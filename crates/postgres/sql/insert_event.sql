-- As insert_events.sql, for a batch of one event: without arrays, which cost more than the row where it stands alone.
--
-- Binds: $1 to $4 as there; $5.. the columns of the event.
-- Rows:  1, or 0 if another row is the last.
-- Locks, index: as there.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata)
SELECT $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::timestamptz, $4::bigint, $10::bigint, $11::uuid, $1::smallint,
       $12::smallint, $13::bytea, $14::bytea
WHERE coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                WHERE last.log = $1 ORDER BY last.log DESC, last.position DESC LIMIT 1),
               $2 = 0)
