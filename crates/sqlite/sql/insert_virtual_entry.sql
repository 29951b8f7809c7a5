-- Adds an entry. Binds: 1 number of the virtual stream, 2 revision, 3 position. Write lock held. Rows: none.
INSERT INTO virtual_entries (stream, revision, position) VALUES (?1, ?2, ?3);
