-- What is stored of some streams, for the check of a run.
--
-- Binds: ?1 beginning of the streams' names.
-- Rows:  one per event: stream, revision from 0, beginning of the data, length of the data.
-- Index: none; the table is read once.
SELECT persistence_id, sequence_number - 1, substr(event_payload, 1, 64), length(event_payload)
FROM event_journal
WHERE substr(persistence_id, 1, length(?1)) = ?1
