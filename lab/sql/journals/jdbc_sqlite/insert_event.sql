-- One event.
--
-- Binds: ?1 persistence_id, ?2 sequence_number, ?3 writer, ?4 write_timestamp (ms), ?5 payload.
-- Rows:  1. A sequence number that is there already violates the unique key.
INSERT INTO event_journal (persistence_id, sequence_number, deleted, writer, write_timestamp, adapter_manifest,
                           event_ser_id, event_ser_manifest, event_payload)
VALUES (?1, ?2, 0, ?3, ?4, '', 1, 'lab-event', ?5)
