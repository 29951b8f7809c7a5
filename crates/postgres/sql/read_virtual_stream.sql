-- What is kept for virtual streams, and one of them. $1 text name. Index: virtual_streams_name_key.
-- One row: on or off, position up to which the log was looked at, number and next revision (NULL if it has no entry).
SELECT i.is_on, i.position, s.id, s.next_revision
FROM virtual_index AS i
LEFT JOIN LATERAL (SELECT id, next_revision FROM virtual_streams WHERE name = $1) AS s ON true
