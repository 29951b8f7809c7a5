-- Events of a stream from its first on, with their sizes. Binds: 1 stream. Index: events_by_stream.
-- The payload itself is not read: its length stands in the header of the row.
-- Rows: as many as the reader steps through, by revision.
SELECT position, revision, created, tags, length(metadata) + length(data) FROM events WHERE stream = ?1 ORDER BY revision;
