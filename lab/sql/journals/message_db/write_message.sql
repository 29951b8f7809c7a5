-- One message.
--
-- Binds: $1 varchar id, $2 varchar stream_name, $3 jsonb data, $4 bigint expected version (-1: no stream).
-- Rows:  1: its number. Another version raises P0001.
-- Index: messages_stream, for the last message.
-- Locks: an advisory lock on the category, until the transaction ends.
SELECT write_message($1, $2, 'lab-event', $3, NULL, $4)
