-- Lets the rest of this transaction delete events. Write lock held. Rows: none.
INSERT INTO retention (id) VALUES (1);
