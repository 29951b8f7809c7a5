-- Several events of one entity, no earlier than the one before them.
--
-- Binds: $1 integer slice, $2 text entity_type, $3 text persistence_id, $4 text writer, $5 bytea[] payloads, in order,
--        $6 bigint seq_nr of the first.
-- Rows:  as many as there are events: the time that they got. A number that is there already violates the primary key.
-- Index: primary key, for the event before.
-- Locks: ROW EXCLUSIVE on event_journal.
INSERT INTO event_journal (slice, entity_type, persistence_id, seq_nr, writer, adapter_manifest, event_ser_id,
                           event_ser_manifest, event_payload, db_timestamp)
SELECT $1::integer, $2::text, $3::text, $6::bigint + e.ordinal - 1, $4::text, '', 1, 'lab-event', e.payload, t.now
FROM unnest($5::bytea[]) WITH ORDINALITY AS e(payload, ordinal),
     (SELECT GREATEST(CURRENT_TIMESTAMP, (SELECT j.db_timestamp + interval '1 microsecond'
                                          FROM event_journal j
                                          WHERE j.persistence_id = $3::text AND j.seq_nr = $6::bigint - 1))) AS t(now)
RETURNING db_timestamp
