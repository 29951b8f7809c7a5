-- The checksum of a row. Binds: $1 smallint log, $2 bigint position. One row, or none. Index: events_pkey.
SELECT checksum FROM events WHERE log = $1 AND position = $2
