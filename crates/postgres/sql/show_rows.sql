-- Tells for rows of logs whether this database has them, and whether it has them or has scavenged an event of their
-- stream and revision; another history may have had another event of these.
-- Binds: $1 smallint[] logs, $2 bigint[] positions, $3 bigint[] writers, $4 bigint[] streams (NULL: not known), $5
-- bigint[] revisions.
-- Rows:  two booleans for each row asked for, in their order. A row at that position by another writer is not the row.
-- Index: two steps in events_pkey and one in scavenges_pkey for each.
SELECT coalesce(there.writer = w.writer, false) AS has,
       coalesce(there.writer = w.writer,
                w.position < coalesce(last.position, 0)
                AND (w.stream IS NULL OR coalesce(gone.last_revision >= w.revision, false))) AS shown
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
     WITH ORDINALITY AS w(log, position, writer, stream, revision, number)
LEFT JOIN LATERAL (SELECT e.writer FROM events AS e WHERE e.log = w.log AND e.position = w.position LIMIT 1) AS there ON true
LEFT JOIN LATERAL (SELECT e.position FROM events AS e WHERE e.log = w.log AND e.position < 9223372036854775807
                   ORDER BY e.log DESC, e.position DESC LIMIT 1) AS last ON true
LEFT JOIN LATERAL (SELECT g.last_revision FROM scavenges AS g WHERE g.log = w.log AND g.stream = w.stream LIMIT 1) AS gone ON true
ORDER BY w.number
