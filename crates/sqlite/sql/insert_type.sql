-- Interns an event type. Binds: 1 row id (position of its first event), 2 name, 3 checksum. Write lock held. Rows: none.
INSERT INTO types (id, name, checksum) VALUES (?1, ?2, ?3);
