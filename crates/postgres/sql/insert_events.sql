-- Stores a batch after the row that must be the last of the log: the chained insert.
--
-- Binds: $1 smallint log; $2 bigint position and $3 bigint writer of the row that must be the last ($2 = 0: the log
--        must be empty); $4 bigint our writer epoch; $5.. one array per column, one element per event, in order,
--        the positions ($5) counting on from $2 without a gap.
-- Rows:  as many as there are events, or 0 if another row is the last.
-- Locks: ROW EXCLUSIVE on events; a racing insert of the same position waits for the first one's end.
-- Index: one backward step in events_pkey for the condition, then inserts into both.
--
-- The condition is evaluated once, on the statement's snapshot. What commits after that snapshot has taken
-- position $2 + 1, so events_pkey refuses this insert: no lock and no counter is needed. Looking for the last row,
-- and not only for row $2, matters once scavenging has removed rows: a gap after $2 does not collide.
-- unnest stands in the SELECT list because there it streams; in FROM it would fill one tuplestore per column.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata)
SELECT unnest($5::bigint[]), unnest($6::bigint[]), unnest($7::bigint[]), unnest($8::bigint[]),
       unnest($9::timestamptz[]), $4::bigint, unnest($10::bigint[]), unnest($11::uuid[]), $1::smallint,
       unnest($12::smallint[]), unnest($13::bytea[]), unnest($14::bytea[])
WHERE coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                WHERE last.log = $1 ORDER BY last.log DESC, last.position DESC LIMIT 1),
               $2 = 0)
