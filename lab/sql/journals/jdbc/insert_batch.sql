-- Events of several entities: what waited in the queue.
--
-- Binds: one array per column, one element per event, in order: $1 text[] persistence_id, $2 bigint[] sequence_number,
--        $3 bigint[] write_timestamp (ms), $4 bytea[] payload; $5 text writer.
-- Rows:  as many as there are events. A sequence number that is there already violates the primary key.
-- Locks: ROW EXCLUSIVE on event_journal.
INSERT INTO event_journal (persistence_id, sequence_number, deleted, writer, write_timestamp, adapter_manifest,
                           event_ser_id, event_ser_manifest, event_payload)
SELECT e.persistence_id, e.sequence_number, false, $5::text, e.write_timestamp, '', 1, 'lab-event', e.payload
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[])
     AS e(persistence_id, sequence_number, write_timestamp, payload)
