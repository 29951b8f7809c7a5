-- Removes one event. Binds: 1 position. Write lock and retention mark held. Index: primary key. Rows: none.
DELETE FROM events WHERE position = ?1;
