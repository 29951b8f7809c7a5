-- Tells whether the file is that of an event store. Binds: none. One row: 1 or 0.
SELECT count(*) = 2 FROM sqlite_schema WHERE type = 'table' AND name IN ('store', 'events')
