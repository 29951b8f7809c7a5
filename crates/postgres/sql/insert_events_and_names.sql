-- As insert_events.sql, for a batch with tags, new streams or new types: all are stored under the one condition.
--
-- Binds: $1 to $13 as there; $14 text[] tags of each event, joined by line feeds, or NULL;
--        $15 bigint[], $16 text[], $17 bigint[] ids, names, checksums of new streams; $18 to $20 the same of new types;
--        $21 text[], $22 bigint[] each tag with its position.
-- Rows:  as many as there are events, or 0 if another row is the last.
-- Locks: as there. A racing insert of the same name waits for the first one's end, then collides.
WITH chain AS MATERIALIZED (
    SELECT coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                     WHERE last.log = $1::smallint ORDER BY last.log DESC, last.position DESC LIMIT 1),
                    $2 = 0) AS holds
), new_streams AS (
    INSERT INTO streams (log, id, name, checksum)
    SELECT $1, n.id, n.name, n.checksum
    FROM unnest($15::bigint[], $16::text[], $17::bigint[]) AS n(id, name, checksum)
    WHERE (SELECT holds FROM chain)
), new_types AS (
    INSERT INTO types (log, id, name, checksum)
    SELECT $1, n.id, n.name, n.checksum
    FROM unnest($18::bigint[], $19::text[], $20::bigint[]) AS n(id, name, checksum)
    WHERE (SELECT holds FROM chain)
), new_tags AS (
    INSERT INTO tags (log, tag, position)
    SELECT $1, n.tag, n.position
    FROM unnest($21::text[], $22::bigint[]) AS n(tag, position)
    WHERE (SELECT holds FROM chain)
)
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata, tags)
SELECT $2 + e.ordinal, e.stream, e.revision, e.type, e.created, $4::bigint, e.checksum, e.event_id,
       $1, e.content_type, e.data, e.metadata, string_to_array(e.tags, E'\n')
FROM unnest($5::bigint[], $6::bigint[], $7::bigint[], $8::timestamptz[], $9::bigint[], $10::uuid[],
            $11::smallint[], $12::bytea[], $13::bytea[], $14::text[])
     WITH ORDINALITY AS e(stream, revision, type, created, checksum, event_id, content_type, data, metadata, tags,
                          ordinal)
WHERE (SELECT holds FROM chain)
