-- Scavenged streams by row id. $1 smallint log, $2 bigint after, $3 bigint rows.
SELECT stream, last_revision, last_position FROM scavenges WHERE log = $1 AND stream > $2 ORDER BY stream LIMIT $3
