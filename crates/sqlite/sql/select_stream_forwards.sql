-- Events of a stream. Binds: 1 stream, 2 lowest revision, 3 highest revision. Index: events_by_stream.
-- Rows: as many as the reader steps through, by revision.
SELECT position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, metadata, data
FROM events WHERE stream = ?1 AND revision BETWEEN ?2 AND ?3 ORDER BY revision;
