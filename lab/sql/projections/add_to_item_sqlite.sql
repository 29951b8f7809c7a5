-- One event: ?1 item, ?2 amount, ?3 name.
INSERT INTO items (id, events, amount, name) VALUES (?1, 1, ?2, ?3)
ON CONFLICT (id) DO UPDATE
SET events = items.events + 1, amount = items.amount + excluded.amount, name = excluded.name
