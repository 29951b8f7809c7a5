-- Events of a stream without payload. Binds: 1 stream, 2 first revision, 3 how many at most. Index: events_by_stream.
-- Rows: at most as many as bound, by revision.
SELECT position, writer, created, stream, revision, event_id, type FROM events
WHERE stream = ?1 AND revision >= ?2 ORDER BY revision LIMIT ?3;
