-- The first events of an entity.
--
-- Binds: $1 integer slice, $2 text entity_type, $3 text persistence_id, $4 text writer, $5 bytea[] payloads, in order.
-- Rows:  as many as there are events: the time that they got. An entity that is there already violates the primary key.
-- Locks: ROW EXCLUSIVE on event_journal.
INSERT INTO event_journal (slice, entity_type, persistence_id, seq_nr, writer, adapter_manifest, event_ser_id,
                           event_ser_manifest, event_payload, db_timestamp)
SELECT $1::integer, $2::text, $3::text, e.ordinal, $4::text, '', 1, 'lab-event', e.payload, CURRENT_TIMESTAMP
FROM unnest($5::bytea[]) WITH ORDINALITY AS e(payload, ordinal)
RETURNING db_timestamp
