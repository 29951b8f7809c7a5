-- Indexes one tag of one event. Binds: 1 tag, 2 position. Write lock held. Rows: none.
INSERT INTO tags (tag, position) VALUES (?1, ?2);
