-- As insert_events.sql, for a batch with tags, new streams or new types: all are stored under the one condition.
--
-- Binds: $1 to $14 as there; $15 text[] tags of each event, joined by line feeds, or NULL;
--        $16 bigint[], $17 text[], $18 bigint[] ids, names, checksums of new streams; $19 to $21 the same of new types;
--        $22 text[], $23 bigint[] each tag with its position.
-- Rows:  as many as there are events, or 0 if another row is the last.
-- Locks: as there. A racing insert of the same name waits for the first one's end, then collides.
WITH chain AS MATERIALIZED (
    SELECT coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                     WHERE last.log = $1::smallint ORDER BY last.log DESC, last.position DESC LIMIT 1),
                    $2 = 0) AS holds
), new_streams AS (
    INSERT INTO streams (log, id, name, checksum)
    SELECT $1, unnest($16::bigint[]), unnest($17::text[]), unnest($18::bigint[])
    WHERE (SELECT holds FROM chain)
), new_types AS (
    INSERT INTO types (log, id, name, checksum)
    SELECT $1, unnest($19::bigint[]), unnest($20::text[]), unnest($21::bigint[])
    WHERE (SELECT holds FROM chain)
), new_tags AS (
    INSERT INTO tags (log, tag, position)
    SELECT $1, unnest($22::text[]), unnest($23::bigint[])
    WHERE (SELECT holds FROM chain)
)
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata, tags)
SELECT unnest($5::bigint[]), unnest($6::bigint[]), unnest($7::bigint[]), unnest($8::bigint[]),
       unnest($9::timestamptz[]), $4::bigint, unnest($10::bigint[]), unnest($11::uuid[]), $1,
       unnest($12::smallint[]), unnest($13::bytea[]), unnest($14::bytea[]), string_to_array(unnest($15::text[]), E'\n')
WHERE (SELECT holds FROM chain)
