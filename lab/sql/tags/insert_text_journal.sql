-- Some events, as the plugin writes a batch of its queue.
--
-- Binds: $1 text[] entities, $2 bigint[] numbers within them, $3 text[] tags, one per event, $4 bytea[] messages.
-- Rows:  the positions. Locks: ROW EXCLUSIVE on journal.
INSERT INTO journal (deleted, persistence_id, sequence_number, created, tags, message, identifier, manifest)
SELECT false, e.persistence_id, e.sequence_number, extract(epoch FROM clock_timestamp()) * 1000,
       ';' || e.tag || ';', e.message, 4, ''
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bytea[]) AS e(persistence_id, sequence_number, tag, message)
RETURNING ordering
