-- Records how far a stream was scavenged. Binds: 1 stream, 2 first revision left, 3 position of the last event removed.
-- Write lock held. Index: primary key. Rows: none.
INSERT INTO scavenges (stream, floor_revision, floor_position) VALUES (?1, ?2, ?3)
ON CONFLICT (stream) DO UPDATE SET floor_revision = excluded.floor_revision, floor_position = excluded.floor_position;
