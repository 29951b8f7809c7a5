-- What is stored of some streams, for the check of a run.
--
-- Binds: $1 text beginning of the streams' names.
-- Rows:  one per event: stream, revision from 0, beginning of the data, length of the data.
-- Index: none; the table is read once.
SELECT persistence_id::text, seq_nr - 1, substring(event_payload FROM 1 FOR 64), octet_length(event_payload)
FROM event_journal
WHERE starts_with(persistence_id, $1::text)
