-- Names of interned streams. $1 smallint log, $2 bigint[] ids. Index: streams_pkey.
SELECT id, name, checksum FROM streams WHERE log = $1 AND id = ANY ($2)
