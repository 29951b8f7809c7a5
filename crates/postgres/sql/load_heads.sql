-- The end of the log, the heads of streams and of their metadata streams, and the ids of types, in one snapshot.
--
-- Binds: $1 smallint log, $2 text[] streams, $3 text[] types.
-- Rows:  kind 0: the end (none if the log is empty); kind 1: one per stream; kind 2: one per type; `ordinal` counts from 1.
-- Index: streams_name_key, then one backward step in events_stream_revision_key per stream.
SELECT 0 AS kind, 0::bigint AS ordinal,
       e.position AS id, e.writer AS revision, NULL::bigint AS position, e.created,
       NULL::bigint AS meta_id, NULL::bigint AS meta_revision, NULL::bigint AS meta_position,
       NULL::bytea AS data, NULL::bytea AS metadata
FROM (SELECT position, writer, created FROM events WHERE log = $1 ORDER BY log DESC, position DESC LIMIT 1) AS e
UNION ALL
SELECT 1, w.ordinal, s.id, coalesce(h.revision, gone.last_revision), coalesce(h.position, gone.last_position), NULL,
       ms.id, m.revision, m.position, m.data, m.metadata
FROM unnest($2::text[]) WITH ORDINALITY AS w(name, ordinal)
LEFT JOIN streams AS s ON s.name = w.name AND s.log = $1
LEFT JOIN LATERAL (
    SELECT e.revision, e.position FROM events AS e WHERE e.log = $1 AND e.stream = s.id
    ORDER BY e.log DESC, e.stream DESC, e.revision DESC LIMIT 1) AS h ON true
LEFT JOIN scavenges AS gone ON gone.log = $1 AND gone.stream = s.id
LEFT JOIN streams AS ms ON ms.name = '$$' || w.name AND ms.log = $1
LEFT JOIN LATERAL (
    SELECT e.revision, e.position, e.data, e.metadata FROM events AS e WHERE e.log = $1 AND e.stream = ms.id
    ORDER BY e.log DESC, e.stream DESC, e.revision DESC LIMIT 1) AS m ON true
UNION ALL
SELECT 2, w.ordinal, t.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest($3::text[]) WITH ORDINALITY AS w(name, ordinal)
LEFT JOIN types AS t ON t.log = $1 AND t.name = w.name
