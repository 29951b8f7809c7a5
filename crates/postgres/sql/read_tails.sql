-- Events of several logs, of each between two positions, forwards; logs in the order of the binds. Payloads above a size
-- are left out; their size comes instead.
-- Binds: one array element per log: $1 smallint[] logs, $2 bigint[] above this, $3 bigint[] up to this, $4 bigint[] rows
--        at most; then for all of them $5 bigint rows at most, $6 integer bytes.
-- Rows:  `ordinal` tells which log, from 1; those of one log come together, by position. The row that closes a log comes
--        too, if its position is not above $3.
-- Index: one range of events_pkey per log, in order. The order and the limit inside leave a plan that was made while the
--        table was empty no other choice; the order outside is that of unnest, so nothing is sorted.
SELECT e.position, e.stream, e.revision, e.type, e.created, e.writer, e.checksum, e.event_id, e.content_type, e.tags,
       CASE WHEN e.bytes > $6 THEN e.bytes END AS large,
       CASE WHEN e.bytes <= $6 THEN coalesce(e.packed, e.data) END AS data,
       CASE WHEN e.bytes <= $6 THEN e.metadata END AS metadata, w.ordinal
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS w(log, after, upto, rows, ordinal)
CROSS JOIN LATERAL (
    SELECT v.*, octet_length(coalesce(v.packed, v.data)) + octet_length(v.metadata) AS bytes FROM events AS v
    WHERE v.log = w.log AND v.position > w.after AND v.position <= w.upto
    ORDER BY v.log, v.position
    LIMIT w.rows) AS e
ORDER BY w.ordinal
LIMIT $5
