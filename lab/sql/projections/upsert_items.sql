-- Rows in bulk, each key once: $1 bigint[] item, $2 bigint[] amount, $3 text[] name.
INSERT INTO items (id, events, amount, name)
SELECT i.id, 1, i.amount, i.name FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS i (id, amount, name)
ON CONFLICT (id) DO UPDATE SET events = excluded.events, amount = excluded.amount, name = excluded.name
