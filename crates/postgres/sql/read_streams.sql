-- Events of several streams, of each between two revisions, forwards; streams in the order of the binds. Payloads above
-- a size are left out; their size comes instead.
-- Binds: $1 smallint log; one array element per stream: $2 bigint[] streams, $3 bigint[] from, $4 bigint[] to (both
--        included), $5 bigint[] rows at most, $6 timestamptz[] not older than this or NULL; then for all of them
--        $7 bigint rows at most, $8 integer bytes.
-- Rows:  `ordinal` tells which stream, from 1; those of one stream come together, by revision.
-- Index: one range of events_stream_revision_key per stream, in order. The order and the limit inside leave a plan that
--        was made while the table was empty no other choice; the order outside is that of unnest, so nothing is sorted.
SELECT e.position, w.ordinal, e.revision, e.type, e.created, e.writer, e.checksum, e.event_id, e.content_type, e.tags,
       CASE WHEN e.bytes > $8 THEN e.bytes END AS large,
       CASE WHEN e.bytes <= $8 THEN coalesce(e.packed, e.data) END AS data,
       CASE WHEN e.bytes <= $8 THEN e.metadata END AS metadata
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[])
     WITH ORDINALITY AS w(stream, first, last, rows, created_from, ordinal)
CROSS JOIN LATERAL (
    SELECT v.*, octet_length(coalesce(v.packed, v.data)) + octet_length(v.metadata) AS bytes FROM events AS v
    WHERE v.log = $1 AND v.stream = w.stream AND v.revision >= w.first AND v.revision <= w.last
      AND (w.created_from IS NULL OR v.created >= w.created_from)
    ORDER BY v.log, v.stream, v.revision
    LIMIT w.rows) AS e
ORDER BY w.ordinal
LIMIT $7
