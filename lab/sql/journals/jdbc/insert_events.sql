-- Several events of one entity.
--
-- Binds: $1 text persistence_id, $2 bigint sequence_number of the first, $3 text writer, $4 bigint write_timestamp (ms),
--        $5 bytea[] payloads, in order.
-- Rows:  as many as there are events. A sequence number that is there already violates the primary key.
-- Locks: ROW EXCLUSIVE on event_journal.
INSERT INTO event_journal (persistence_id, sequence_number, deleted, writer, write_timestamp, adapter_manifest,
                           event_ser_id, event_ser_manifest, event_payload)
SELECT $1::text, $2::bigint + e.ordinal - 1, false, $3::text, $4::bigint, '', 1, 'lab-event', e.payload
FROM unnest($5::bytea[]) WITH ORDINALITY AS e(payload, ordinal)
