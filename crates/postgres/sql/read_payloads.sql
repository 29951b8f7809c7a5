-- Payloads that a page left out. $1 smallint log, $2 bigint[] positions. Index: events_pkey.
SELECT position, coalesce(packed, data), metadata FROM events WHERE log = $1 AND position = ANY ($2) ORDER BY position
