-- The separate form, first statement in the transaction: the events.
--
-- Binds: $1 uuid[] event ids and $2 bytea[] data, in order.
-- Rows:  as many as there are events.
-- Locks: ROW EXCLUSIVE on events.
INSERT INTO events (event_id, event_type, data)
SELECT e.event_id, 'lab-event', e.data FROM unnest($1::uuid[], $2::bytea[]) AS e(event_id, data)
