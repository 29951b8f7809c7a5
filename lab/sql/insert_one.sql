-- The bare statement of one writer with one event: what anybody would write first.
--
-- Binds: $1 bigint position, $2 bigint stream, $3 bigint revision, $4 bigint checksum, $5 uuid id, $6 bytea data, $7 bytea metadata.
-- Rows:  1.
-- Locks: ROW EXCLUSIVE on events.
INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                    data, metadata)
VALUES ($1, $2, $3, 1, now(), 1, $4, $5, 0, 0, $6, $7)
