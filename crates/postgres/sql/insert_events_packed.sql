-- As insert_events.sql, for a batch with data that this process has compressed.
--
-- Binds: $1 to $14 as there, with empty data for these events; $15 bytea[] their compressed data, else NULL.
-- Rows, locks, index: as there.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata, packed)
SELECT unnest($5::bigint[]), unnest($6::bigint[]), unnest($7::bigint[]), unnest($8::bigint[]),
       unnest($9::timestamptz[]), $4::bigint, unnest($10::bigint[]), unnest($11::uuid[]), $1::smallint,
       unnest($12::smallint[]), unnest($13::bytea[]), unnest($14::bytea[]), unnest($15::bytea[])
WHERE coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                WHERE last.log = $1 ORDER BY last.log DESC, last.position DESC LIMIT 1),
               $2 = 0)
