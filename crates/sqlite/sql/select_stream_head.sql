-- The last stored event of a stream. Binds: 1 stream. Index: events_by_stream, backwards. Rows: at most one.
SELECT revision, position, event_id FROM events WHERE stream = ?1 ORDER BY revision DESC LIMIT 1;
