-- Some events, as the plugin writes a batch of its queue.
--
-- Binds: $1 text[] entities, $2 bigint[] numbers within them, $3 text[] the number of the tag, one per event,
--        $4 bytea[] messages.
-- Rows:  the positions. Locks: ROW EXCLUSIVE on journal.
INSERT INTO journal (persistence_id, sequence_number, message, tags, metadata)
SELECT e.persistence_id, e.sequence_number, e.message, ARRAY[e.tag::integer], '{"serId":4,"serManifest":""}'
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bytea[]) AS e(persistence_id, sequence_number, tag, message)
RETURNING ordering
