-- Name of an interned stream. $1 smallint log, $2 bigint id.
SELECT name FROM streams WHERE log = $1 AND id = $2
