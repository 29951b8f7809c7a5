-- Events of a log between two positions, forwards. Payloads above a size are left out; their size comes instead.
-- Binds: $1 smallint log, $2 bigint above this, $3 bigint up to this, $4 bigint rows at most, $5 integer bytes.
-- Index: range of events_pkey, in order.
SELECT e.position, e.stream, e.revision, e.type, e.created, e.writer, e.checksum, e.event_id, e.content_type, e.tags,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) > $5::integer
            THEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) END AS large,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN coalesce(e.packed, e.data) END AS data,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN e.metadata END AS metadata
FROM events AS e
WHERE e.log = $1 AND e.position > $2 AND e.position <= $3
ORDER BY e.log, e.position
LIMIT $4
