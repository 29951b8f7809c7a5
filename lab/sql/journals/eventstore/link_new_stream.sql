-- The separate form, second statement: a new stream and its links.
--
-- Binds: $1 text stream_uuid, $2 uuid[] event ids, in order.
-- Rows:  one per event: the stream's id. A stream that is there already violates its unique key.
-- Locks: ROW EXCLUSIVE on streams and stream_events.
WITH stream AS (
    INSERT INTO streams (stream_uuid, stream_version) VALUES ($1::text, cardinality($2::uuid[]))
    RETURNING stream_id
)
INSERT INTO stream_events (event_id, stream_id, stream_version, original_stream_id, original_stream_version)
SELECT e.event_id, stream.stream_id, e.ordinal, stream.stream_id, e.ordinal
FROM stream, unnest($2::uuid[]) WITH ORDINALITY AS e(event_id, ordinal)
RETURNING stream_id
