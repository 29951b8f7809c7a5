-- Events of a stream between two revisions, backwards. Payloads above a size are left out; their size comes instead.
-- Binds: $1 smallint log, $2 bigint from, $3 bigint to (both included), $4 bigint rows at most, $5 integer bytes,
--        $6 bigint stream, $7 timestamptz not older than this or NULL.
-- Index: range of events_stream_revision_key, in order.
SELECT e.position, e.stream, e.revision, e.type, e.created, e.writer, e.checksum, e.event_id, e.content_type, e.tags,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) > $5::integer
            THEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) END AS large,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN coalesce(e.packed, e.data) END AS data,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN e.metadata END AS metadata
FROM events AS e
WHERE e.log = $1 AND e.stream = $6 AND e.revision >= $2 AND e.revision <= $3
  AND ($7::timestamptz IS NULL OR e.created >= $7)
ORDER BY e.log DESC, e.stream DESC, e.revision DESC
LIMIT $4
