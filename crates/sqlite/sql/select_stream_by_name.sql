-- The interned stream of a name. Binds: 1 name. Index: the one of UNIQUE (name). Rows: at most one (id, checksum).
SELECT id, checksum FROM streams WHERE name = ?1;
