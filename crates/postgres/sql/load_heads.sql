-- The end of the log, the heads of streams and of their metadata streams, and the ids of types, in one snapshot.
--
-- Binds: $1 smallint log, $2 text[] streams, $3 text[] types.
-- Rows:  kind 0: the end (none if the log is empty); kind 1: one per stream; kind 2: one per type; `ordinal` counts from 1.
-- `event_id` is that of the stream's last event, NULL once that is scavenged.
-- Index: streams_name_key, then one backward step in events_stream_revision_key per stream.
-- Each lookup is a subquery with a limit: as a plain join, a plan that was made while the tables were empty reads a whole index.
-- A name is unique in the store and belongs to one log, so streams are found by their names alone.
SELECT 0 AS kind, 0::bigint AS ordinal,
       e.position AS id, e.writer AS revision, NULL::bigint AS position, e.created,
       NULL::bigint AS meta_id, NULL::bigint AS meta_revision, NULL::bigint AS meta_position,
       NULL::bytea AS data, NULL::bytea AS metadata, NULL::uuid AS event_id
FROM (SELECT position, writer, created FROM events WHERE log = $1 ORDER BY log DESC, position DESC LIMIT 1) AS e
UNION ALL
SELECT 1, w.ordinal, s.id, coalesce(h.revision, gone.last_revision), coalesce(h.position, gone.last_position), NULL,
       ms.id, m.revision, m.position, m.data, m.metadata, h.event_id
FROM unnest($2::text[]) WITH ORDINALITY AS w(name, ordinal)
LEFT JOIN LATERAL (SELECT st.id FROM streams AS st WHERE st.name = w.name LIMIT 1) AS s ON true
LEFT JOIN LATERAL (
    SELECT e.revision, e.position, e.event_id FROM events AS e WHERE e.log = $1 AND e.stream = s.id
    ORDER BY e.log DESC, e.stream DESC, e.revision DESC LIMIT 1) AS h ON true
LEFT JOIN LATERAL (
    SELECT g.last_revision, g.last_position FROM scavenges AS g WHERE g.log = $1 AND g.stream = s.id LIMIT 1) AS gone ON true
LEFT JOIN LATERAL (SELECT st.id FROM streams AS st WHERE st.name = '$$' || w.name LIMIT 1) AS ms ON true
LEFT JOIN LATERAL (
    SELECT e.revision, e.position, e.data, e.metadata FROM events AS e WHERE e.log = $1 AND e.stream = ms.id
    ORDER BY e.log DESC, e.stream DESC, e.revision DESC LIMIT 1) AS m ON true
UNION ALL
SELECT 2, w.ordinal, t.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest($3::text[]) WITH ORDINALITY AS w(name, ordinal)
LEFT JOIN LATERAL (SELECT ty.id FROM types AS ty WHERE ty.log = $1 AND ty.name = w.name LIMIT 1) AS t ON true
