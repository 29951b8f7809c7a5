-- Scavenge marks for the audit. Binds: 1 above this row id. Rows: as many as the reader steps through, by row id.
SELECT stream, floor_revision, floor_position FROM scavenges WHERE stream > ?1 ORDER BY stream;
