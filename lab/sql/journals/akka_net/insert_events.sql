-- Several events of one entity without tags, in either form.
--
-- Binds: $1 text persistence_id, $2 bigint sequence_number of the first, $3 text writer_uuid, $4 bigint created,
--        $5 bytea[] messages, in order.
-- Rows:  as many as there are events. A sequence number that is there already violates the unique key.
-- Locks: ROW EXCLUSIVE on journal.
INSERT INTO journal (deleted, persistence_id, sequence_number, created, message, identifier, manifest, writer_uuid)
SELECT false, $1::text, $2::bigint + e.ordinal - 1, $4::bigint, e.message, 1, 'lab-event', $3::text
FROM unnest($5::bytea[]) WITH ORDINALITY AS e(message, ordinal)
