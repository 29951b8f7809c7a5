-- What removing hidden events of a stream would free.
-- Binds: $1 smallint log, $2 bigint stream, $3 bigint first revision to keep, $4 timestamptz first moment to keep or NULL,
--        $5 bigint end of the log: this row and what follows stays.
SELECT count(*) AS events, coalesce(sum(octet_length(coalesce(packed, data)) + octet_length(metadata)), 0)::bigint AS payload_bytes
FROM events
WHERE log = $1 AND stream = $2 AND position < $5 AND (revision < $3 OR created < $4::timestamptz)
