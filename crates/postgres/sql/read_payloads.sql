-- Payloads that a page left out, of one log or of several.
-- Binds: one array element per event: $1 smallint[] logs, $2 bigint[] positions.
-- Rows:  at most one per event; `ordinal` tells which, from 1. A row that was scavenged meanwhile is left out.
-- Index: one row of events_pkey per event, in the order of the binds. The limit inside leaves no other choice.
SELECT w.ordinal, e.data, e.metadata
FROM unnest($1::smallint[], $2::bigint[]) WITH ORDINALITY AS w(log, position, ordinal)
CROSS JOIN LATERAL (
    SELECT coalesce(v.packed, v.data) AS data, v.metadata FROM events AS v
    WHERE v.log = w.log AND v.position = w.position
    LIMIT 1) AS e
