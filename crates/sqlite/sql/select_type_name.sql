-- The name of an interned event type. Binds: 1 row id. Index: primary key. Rows: at most one (name, checksum).
SELECT name, checksum FROM types WHERE id = ?1;
