-- The interned event type of a name. Binds: 1 name. Index: the one of UNIQUE (name). Rows: at most one (id, checksum).
SELECT id, checksum FROM types WHERE name = ?1;
