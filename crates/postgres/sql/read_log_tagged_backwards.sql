-- As read_log_filtered_backwards.sql, only events with one of some tags, found by the tags.
-- Binds: $1 to $9 as there; $10 text[] tags, any of.
-- Index: one range of tags_pkey per tag, no longer than the page unless there are other conditions; then one look into events_pkey per position.
SELECT e.position, e.stream, e.revision, e.type, e.created, e.writer, e.checksum, e.event_id, e.content_type, e.tags,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) > $5::integer
            THEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) END AS large,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN coalesce(e.packed, e.data) END AS data,
       CASE WHEN octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) <= $5 THEN e.metadata END AS metadata
FROM (SELECT DISTINCT found.position FROM unnest($10::text[]) AS wanted(tag) CROSS JOIN LATERAL (
          SELECT t.position FROM tags AS t
          WHERE t.log = $1 AND t.tag = wanted.tag AND t.position > $2 AND t.position <= $3
          ORDER BY t.position DESC
          LIMIT CASE WHEN $6::text[] IS NULL AND $7::text[] IS NULL AND $8::text[] IS NULL AND $9::text[] IS NULL
                     THEN $4::bigint END) AS found) AS tagged
CROSS JOIN LATERAL (SELECT * FROM events AS e WHERE e.log = $1 AND e.position = tagged.position LIMIT 1) AS e
WHERE ($6::text[] IS NULL
       OR e.type = ANY (ARRAY(SELECT t.id FROM types AS t WHERE t.log = $1 AND t.name = ANY ($6))))
  AND ($7::text[] IS NULL
       OR (SELECT s.name ^@ ANY ($7) FROM streams AS s WHERE s.log = $1 AND s.id = e.stream))
  AND ($8::text[] IS NULL
       OR (SELECT split_part(s.name, '-', 1) = ANY ($8) FROM streams AS s WHERE s.log = $1 AND s.id = e.stream))
  AND ($9::text[] IS NULL OR e.tags @> $9)
ORDER BY tagged.position DESC
LIMIT $4
