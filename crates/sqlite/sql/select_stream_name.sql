-- The name of an interned stream. Binds: 1 row id. Index: primary key. Rows: at most one (name, checksum).
SELECT name, checksum FROM streams WHERE id = ?1;
