-- What is stored of some streams, for the check of a run; also for partitioned and nested.
--
-- Binds: $1 text beginning of the streams' names.
-- Rows:  one per event: stream, revision from 0, beginning of the data, length of the data.
-- Index: none; the table is read once.
-- Locks: ACCESS SHARE on the table; of nested partitions one is named after the other instead of `journal`, since
--        reading thousands at once takes more locks than a server has.
SELECT persistence_id, sequence_number - 1, substring(message FROM 1 FOR 64), octet_length(message)
FROM journal
WHERE starts_with(persistence_id, $1::text)
