-- Interned streams by row id. Rows that share an id come together. $1 smallint log, $2 bigint after, $3 bigint rows.
SELECT id, name, checksum FROM streams WHERE log = $1 AND id > $2 ORDER BY id FETCH FIRST $3 ROWS WITH TIES
