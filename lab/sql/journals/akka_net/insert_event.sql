-- One event without tags, in either form.
--
-- Binds: $1 varchar persistence_id, $2 bigint sequence_number, $3 varchar writer_uuid, $4 bigint created, $5 bytea message.
-- Rows:  1. A sequence number that is there already violates the unique key.
-- Locks: ROW EXCLUSIVE on journal.
INSERT INTO journal (deleted, persistence_id, sequence_number, created, message, identifier, manifest, writer_uuid)
VALUES (false, $1, $2, $4, $5, 1, 'lab-event', $3)
