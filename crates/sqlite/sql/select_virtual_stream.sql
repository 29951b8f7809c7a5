-- A virtual stream by its name. Binds: 1 name. Index: the one of UNIQUE (name). Rows: at most one (number, next revision).
SELECT id, next_revision FROM virtual_streams WHERE name = ?1;
