-- Events of a stream without payload, newest first. Binds: 1 stream. Index: events_by_stream, backwards.
-- Rows: as many as the reader steps through, by falling revision.
SELECT position, writer, created, stream, revision, event_id, type FROM events
WHERE stream = ?1 ORDER BY revision DESC;
