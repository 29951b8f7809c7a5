-- What is stored of some streams, for the check of a run: as the links of the streams tell it, which $all must repeat.
--
-- Binds: $1 text beginning of the streams' names.
-- Rows:  one per event: stream, revision from 0, beginning of the data, length of the data.
-- Index: primary keys of events and stream_events; the rest is read once.
SELECT s.stream_uuid, l.stream_version - 1, substring(e.data FROM 1 FOR 64), octet_length(e.data)
FROM streams s
JOIN stream_events l ON l.stream_id = s.stream_id
JOIN stream_events a ON a.event_id = l.event_id AND a.stream_id = 0
                    AND a.original_stream_id = s.stream_id AND a.original_stream_version = l.stream_version
JOIN events e ON e.event_id = l.event_id
WHERE s.stream_id <> 0 AND starts_with(s.stream_uuid, $1::text)
