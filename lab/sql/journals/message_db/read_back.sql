-- What is stored of some streams, for the check of a run. The form of jsonb is PostgreSQL's own, so there is no length.
--
-- Binds: $1 text beginning of the streams' names.
-- Rows:  one per event: stream, revision from 0, mark, null.
-- Index: none; the table is read once.
SELECT stream_name, position, convert_to(coalesce(data ->> 'mark', ''), 'UTF8'), NULL::integer
FROM messages
WHERE starts_with(stream_name, $1::text)
