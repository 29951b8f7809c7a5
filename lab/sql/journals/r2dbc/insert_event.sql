-- One event, no earlier than the one before it.
--
-- Binds: $1 integer slice, $2 varchar entity_type, $3 text persistence_id, $4 varchar writer, $5 bytea payload,
--        $6 bigint seq_nr.
-- Rows:  1: the time that it got. A number that is there already violates the primary key.
-- Index: primary key, for the event before.
-- Locks: ROW EXCLUSIVE on event_journal.
INSERT INTO event_journal (slice, entity_type, persistence_id, seq_nr, writer, adapter_manifest, event_ser_id,
                           event_ser_manifest, event_payload, db_timestamp)
VALUES ($1, $2, $3::text, $6::bigint, $4, '', 1, 'lab-event', $5,
        GREATEST(CURRENT_TIMESTAMP, (SELECT j.db_timestamp + interval '1 microsecond'
                                     FROM event_journal j WHERE j.persistence_id = $3::text AND j.seq_nr = $6::bigint - 1)))
RETURNING db_timestamp
