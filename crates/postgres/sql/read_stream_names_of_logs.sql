-- Names of streams of several logs by their row ids, with checksums. Binds: one array element per stream: $1 smallint[]
-- logs, $2 bigint[] ids. Rows: `ordinal` tells which stream, from 1. Index: one look into streams_pkey per stream.
SELECT w.ordinal, s.name, s.checksum
FROM unnest($1::smallint[], $2::bigint[]) WITH ORDINALITY AS w(log, id, ordinal)
CROSS JOIN LATERAL (SELECT t.name, t.checksum FROM streams AS t WHERE t.log = w.log AND t.id = w.id LIMIT 1) AS s
