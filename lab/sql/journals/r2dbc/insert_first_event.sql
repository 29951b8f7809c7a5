-- The first event of an entity.
--
-- Binds: $1 integer slice, $2 varchar entity_type, $3 varchar persistence_id, $4 varchar writer, $5 bytea payload.
-- Rows:  1: the time that it got. An entity that is there already violates the primary key.
-- Locks: ROW EXCLUSIVE on event_journal.
INSERT INTO event_journal (slice, entity_type, persistence_id, seq_nr, writer, adapter_manifest, event_ser_id,
                           event_ser_manifest, event_payload, db_timestamp)
VALUES ($1, $2, $3, 1, $4, '', 1, 'lab-event', $5, CURRENT_TIMESTAMP)
RETURNING db_timestamp
