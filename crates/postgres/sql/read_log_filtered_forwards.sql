-- As read_log_forwards.sql, only events that a filter can match. Conditions that are NULL hold for every event.
-- Binds: $1 to $5 as there; $6 text[] types, any of; $7 text[] stream prefixes, any of; $8 text[] categories, any of;
--        $9 text[] tags, all of.
-- Repeats read_log_filtered_backwards.sql but for the direction, because a file holds one whole statement.
-- Index: range of events_pkey, in order; per event one look into streams_pkey if a prefix or category is asked for.
SELECT e.position, e.stream, e.revision, e.type, e.created, e.writer, e.checksum, e.event_id, e.content_type, e.tags,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) > $5::integer
            THEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) END AS large,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN coalesce(e.packed, e.data) END AS data,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN e.metadata END AS metadata
FROM events AS e
WHERE e.log = $1 AND e.position > $2 AND e.position <= $3
  AND ($6::text[] IS NULL
       OR e.type = ANY (ARRAY(SELECT t.id FROM types AS t WHERE t.log = $1 AND t.name = ANY ($6))))
  AND ($7::text[] IS NULL
       OR (SELECT s.name ^@ ANY ($7) FROM streams AS s WHERE s.log = $1 AND s.id = e.stream))
  AND ($8::text[] IS NULL
       OR (SELECT split_part(s.name, '-', 1) = ANY ($8) FROM streams AS s WHERE s.log = $1 AND s.id = e.stream))
  AND ($9::text[] IS NULL OR e.tags @> $9)
ORDER BY e.log, e.position
LIMIT $4
