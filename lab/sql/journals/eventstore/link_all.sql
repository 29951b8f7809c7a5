-- The separate form, third statement: the version of $all, and its links.
--
-- Binds: $1 bigint id of the events' own stream, $2 uuid[] event ids, in order, $3 bigint version before them.
-- Rows:  as many as there are events.
-- Locks: the row of $all, until the transaction ends, hence over a round trip: appends go through one after the other.
WITH everything AS (
    UPDATE streams SET stream_version = stream_version + cardinality($2::uuid[])
    WHERE stream_id = 0
    RETURNING stream_version - cardinality($2::uuid[]) AS before
)
INSERT INTO stream_events (event_id, stream_id, stream_version, original_stream_id, original_stream_version)
SELECT e.event_id, 0, everything.before + e.ordinal, $1::bigint, $3::bigint + e.ordinal
FROM everything, unnest($2::uuid[]) WITH ORDINALITY AS e(event_id, ordinal)
