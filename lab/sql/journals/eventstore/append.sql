-- A whole append to a stream that is there, in one statement.
--
-- Binds: $1 text stream_uuid, $2 uuid[] event ids and $3 bytea[] data, in order, $4 bigint expected version.
-- Rows:  one: how many events are now in $all; 0, and nothing written, if the stream has not the expected version.
-- Index: streams_stream_uuid_idx.
-- Locks: the stream's row, and the row of $all, from when the events and their stream's links are written until the
--        transaction ends: the counts make each step wait for the one before (see append_new.sql).
WITH given AS (
    SELECT e.event_id, e.data, e.ordinal FROM unnest($2::uuid[], $3::bytea[]) WITH ORDINALITY AS e(event_id, data, ordinal)
), stream AS (
    UPDATE streams SET stream_version = stream_version + cardinality($2::uuid[])
    WHERE stream_uuid = $1::text AND stream_version = $4::bigint
    RETURNING stream_id
), written AS (
    INSERT INTO events (event_id, event_type, data)
    SELECT given.event_id, 'lab-event', given.data FROM given, stream
    RETURNING 1
), links AS (
    INSERT INTO stream_events (event_id, stream_id, stream_version, original_stream_id, original_stream_version)
    SELECT given.event_id, stream.stream_id, $4::bigint + given.ordinal, stream.stream_id, $4::bigint + given.ordinal
    FROM given, stream
    WHERE (SELECT count(*) FROM written) > 0
    RETURNING 1
), everything AS (
    UPDATE streams SET stream_version = streams.stream_version + cardinality($2::uuid[])
    FROM stream
    WHERE streams.stream_id = 0 AND (SELECT count(*) FROM links) > 0
    RETURNING streams.stream_version - cardinality($2::uuid[]) AS before
), links_of_all AS (
    INSERT INTO stream_events (event_id, stream_id, stream_version, original_stream_id, original_stream_version)
    SELECT given.event_id, 0, everything.before + given.ordinal, stream.stream_id, $4::bigint + given.ordinal
    FROM given, stream, everything
    RETURNING 1
)
SELECT count(*) FROM links_of_all
