-- As insert_events_of_logs.sql, for batches with tags, new streams, new types or compressed data among them.
--
-- Binds: $1 to $15 as there; $16 bytea[] compressed data of each event, or NULL; $17 text[] tags of each event, joined
--        by line feeds, or NULL; $18 smallint[], $19 bigint[], $20 text[], $21 bigint[] logs, ids, names, checksums of
--        new streams; $22 to $25 the same of new types; $26 smallint[], $27 text[], $28 bigint[] the log of each tag, the
--        tag, its position. All in order of log.
-- Rows, index: as there.
-- Locks: as there. A racing insert of the same name waits for the first one's end, then collides. The events are
--        inserted first, because the answer counts them.
WITH good AS MATERIALIZED (
    SELECT l.log
    FROM (SELECT unnest($1::smallint[]) AS log, unnest($2::bigint[]) AS position, unnest($3::bigint[]) AS writer) AS l
    WHERE coalesce((SELECT last.position = l.position AND last.writer = l.writer FROM events AS last
                    WHERE last.log = l.log ORDER BY last.log DESC, last.position DESC LIMIT 1),
                   l.position = 0)
), stored AS (
    INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                        data, metadata, packed, tags)
    SELECT position, stream, revision, type, created, writer, checksum, event_id, log, content_type, data, metadata,
           packed, string_to_array(tags, E'\n')
    FROM (SELECT unnest($4::bigint[]) AS position, unnest($5::bigint[]) AS stream, unnest($6::bigint[]) AS revision,
                 unnest($7::bigint[]) AS type, unnest($8::timestamptz[]) AS created, unnest($9::bigint[]) AS writer,
                 unnest($10::bigint[]) AS checksum, unnest($11::uuid[]) AS event_id, unnest($12::smallint[]) AS log,
                 unnest($13::smallint[]) AS content_type, unnest($14::bytea[]) AS data,
                 unnest($15::bytea[]) AS metadata, unnest($16::bytea[]) AS packed, unnest($17::text[]) AS tags) AS rows
    WHERE log = ANY (ARRAY(SELECT log FROM good))
    RETURNING log
), new_streams AS (
    INSERT INTO streams (log, id, name, checksum)
    SELECT log, id, name, checksum
    FROM (SELECT unnest($18::smallint[]) AS log, unnest($19::bigint[]) AS id, unnest($20::text[]) AS name,
                 unnest($21::bigint[]) AS checksum) AS names
    WHERE log = ANY (ARRAY(SELECT log FROM good))
), new_types AS (
    INSERT INTO types (log, id, name, checksum)
    SELECT log, id, name, checksum
    FROM (SELECT unnest($22::smallint[]) AS log, unnest($23::bigint[]) AS id, unnest($24::text[]) AS name,
                 unnest($25::bigint[]) AS checksum) AS names
    WHERE log = ANY (ARRAY(SELECT log FROM good))
), new_tags AS (
    INSERT INTO tags (log, tag, position)
    SELECT log, tag, position
    FROM (SELECT unnest($26::smallint[]) AS log, unnest($27::text[]) AS tag, unnest($28::bigint[]) AS position) AS names
    WHERE log = ANY (ARRAY(SELECT log FROM good))
)
SELECT ARRAY(SELECT log FROM good) AS logs, (SELECT count(*) FROM stored) AS events,
       CASE WHEN current_setting('synchronous_standby_names') <> '' AND EXISTS (SELECT FROM good)
            THEN pg_logical_emit_message(true, 'gesta', ''::text) END AS committed
