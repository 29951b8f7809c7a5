-- One event: $1 bigint item, $2 bigint amount, $3 text name.
INSERT INTO items (id, events, amount, name) VALUES ($1, 1, $2, $3)
ON CONFLICT (id) DO UPDATE
SET events = items.events + 1, amount = items.amount + excluded.amount, name = excluded.name
