-- The separate form, second statement: the version of a stream that is there, and its links.
--
-- Binds: $1 text stream_uuid, $2 uuid[] event ids, in order, $3 bigint expected version.
-- Rows:  one per event: the stream's id; none if the stream has not the expected version.
-- Index: streams_stream_uuid_idx.
-- Locks: the stream's row, until the transaction ends.
WITH stream AS (
    UPDATE streams SET stream_version = stream_version + cardinality($2::uuid[])
    WHERE stream_uuid = $1::text AND stream_version = $3::bigint
    RETURNING stream_id
)
INSERT INTO stream_events (event_id, stream_id, stream_version, original_stream_id, original_stream_version)
SELECT e.event_id, stream.stream_id, $3::bigint + e.ordinal, stream.stream_id, $3::bigint + e.ordinal
FROM stream, unnest($2::uuid[]) WITH ORDINALITY AS e(event_id, ordinal)
RETURNING stream_id
