-- Names of interned types. $1 smallint log, $2 bigint[] ids. Index: types_pkey.
SELECT id, name, checksum FROM types WHERE log = $1 AND id = ANY ($2)
