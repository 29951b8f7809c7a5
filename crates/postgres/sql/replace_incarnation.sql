-- Begins a new life of the store in place of a certain one, and tells the other servers; nothing if that one was replaced already.
-- Binds: $1 uuid the old incarnation, $2 uuid the new one, $3 text channel, $4 text payload.
-- Locks: the row of the store; who comes second sees what the first one has written.
WITH replaced AS (UPDATE store SET incarnation = $2 WHERE incarnation = $1 RETURNING one)
SELECT pg_notify($3, $4) FROM replaced
