-- Stores a batch behind the row that must be the last of the log: the chained insert.
--
-- Binds: $1 smallint log; $2 bigint position and $3 bigint writer of the row that must be the last ($2 = 0: the log
--        must be empty); $4 bigint our writer epoch; $5.. one array per column, one element per event, in order.
-- Rows:  as many as there are events, or 0 if another row is the last.
-- Locks: ROW EXCLUSIVE on events; a racing insert of the same position waits for the first one's end.
-- Index: one backward step in events_pkey for the condition, then inserts into both.
--
-- The condition is evaluated once, on the statement's snapshot. What commits behind that snapshot has taken
-- position $2 + 1, so events_pkey refuses this insert: no lock and no counter is needed. Looking for the last row,
-- and not only for row $2, matters once scavenging has removed rows: a gap behind $2 does not collide.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata)
SELECT $2::bigint + e.ordinal, e.stream, e.revision, e.type, e.created, $4::bigint, e.checksum, e.event_id,
       $1::smallint, e.content_type, e.data, e.metadata
FROM unnest($5::bigint[], $6::bigint[], $7::bigint[], $8::timestamptz[], $9::bigint[], $10::uuid[],
            $11::smallint[], $12::bytea[], $13::bytea[])
     WITH ORDINALITY AS e(stream, revision, type, created, checksum, event_id, content_type, data, metadata, ordinal)
WHERE coalesce((SELECT last.position = $2 AND last.writer = $3::bigint FROM events AS last
                WHERE last.log = $1 ORDER BY last.log DESC, last.position DESC LIMIT 1),
               $2 = 0)
