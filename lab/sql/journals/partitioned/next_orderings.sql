-- Positions for events that are written next; not given back if they are not.
--
-- Binds: $1 bigint how many.
-- Rows:  as many, rising.
SELECT nextval('journal_ordering_seq') FROM generate_series(1, $1::bigint)
