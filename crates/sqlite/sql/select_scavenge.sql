-- How far a stream was scavenged. Binds: 1 stream. Index: primary key. Rows: at most one (floor revision, floor position).
SELECT floor_revision, floor_position FROM scavenges WHERE stream = ?1;
