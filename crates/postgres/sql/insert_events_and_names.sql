-- As insert_events.sql, for a batch with tags, new streams or new types: all are stored under the one condition.
--
-- Binds: $1 to $15 as in insert_events_packed.sql; $16 text[] tags of each event, joined by line feeds, or NULL;
--        $17 bigint[], $18 text[], $19 bigint[] ids, names, checksums of new streams; $20 to $22 the same of new types;
--        $23 text[], $24 bigint[] each tag with its position.
-- Rows:  as many as there are events, or 0 if another row is the last.
-- Locks: as there. A racing insert of the same name waits for the first one's end, then collides.
WITH chain AS MATERIALIZED (
    SELECT coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                     WHERE last.log = $1::smallint ORDER BY last.log DESC, last.position DESC LIMIT 1),
                    $2 = 0) AS holds
), new_streams AS (
    INSERT INTO streams (log, id, name, checksum)
    SELECT $1, unnest($17::bigint[]), unnest($18::text[]), unnest($19::bigint[])
    WHERE (SELECT holds FROM chain)
), new_types AS (
    INSERT INTO types (log, id, name, checksum)
    SELECT $1, unnest($20::bigint[]), unnest($21::text[]), unnest($22::bigint[])
    WHERE (SELECT holds FROM chain)
), new_tags AS (
    INSERT INTO tags (log, tag, position)
    SELECT $1, unnest($23::text[]), unnest($24::bigint[])
    WHERE (SELECT holds FROM chain)
)
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata, packed, tags)
SELECT unnest($5::bigint[]), unnest($6::bigint[]), unnest($7::bigint[]), unnest($8::bigint[]),
       unnest($9::timestamptz[]), $4::bigint, unnest($10::bigint[]), unnest($11::uuid[]), $1,
       unnest($12::smallint[]), unnest($13::bytea[]), unnest($14::bytea[]), unnest($15::bytea[]),
       string_to_array(unnest($16::text[]), E'\n')
WHERE (SELECT holds FROM chain)
