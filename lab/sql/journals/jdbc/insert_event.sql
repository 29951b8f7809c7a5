-- One event.
--
-- Binds: $1 varchar persistence_id, $2 bigint sequence_number, $3 varchar writer, $4 bigint write_timestamp (ms),
--        $5 bytea payload.
-- Rows:  1. A sequence number that is there already violates the primary key.
-- Locks: ROW EXCLUSIVE on event_journal.
INSERT INTO event_journal (persistence_id, sequence_number, deleted, writer, write_timestamp, adapter_manifest,
                           event_ser_id, event_ser_manifest, event_payload)
VALUES ($1, $2, false, $3, $4, '', 1, 'lab-event', $5)
