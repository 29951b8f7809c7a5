-- The first stored event of a stream from a revision on. Binds: 1 stream, 2 revision. Index: events_by_stream.
-- Rows: at most one (revision, created).
SELECT revision, created FROM events WHERE stream = ?1 AND revision >= ?2 ORDER BY revision LIMIT 1;
