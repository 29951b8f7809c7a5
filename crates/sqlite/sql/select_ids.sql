-- The ids of a part of the log. Binds: 1 above this position, 2 up to this one. Index: primary key.
-- Rows: at most as many as there are positions between them.
SELECT stream, event_id, position, created FROM events WHERE position > ?1 AND position <= ?2;
