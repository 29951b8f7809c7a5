-- Some events and their tags, in one statement (the plugin needs several and a transaction).
--
-- Binds: $1 text[] entities, $2 bigint[] numbers within them, $3 text[] tags, one per event, $4 bytea[] messages.
-- Rows:  the positions. Locks: ROW EXCLUSIVE on journal and tags.
WITH new AS (
    INSERT INTO journal (deleted, persistence_id, sequence_number, created, message, identifier, manifest)
    SELECT false, e.persistence_id, e.sequence_number, extract(epoch FROM clock_timestamp()) * 1000, e.message, 4, ''
    FROM unnest($1::text[], $2::bigint[], $4::bytea[]) AS e(persistence_id, sequence_number, message)
    RETURNING ordering, persistence_id, sequence_number
)
INSERT INTO tags (ordering_id, tag, persistence_id, sequence_nr)
SELECT new.ordering, e.tag, e.persistence_id, e.sequence_number
FROM unnest($1::text[], $2::bigint[], $3::text[]) AS e(persistence_id, sequence_number, tag)
JOIN new USING (persistence_id, sequence_number)
RETURNING ordering_id
