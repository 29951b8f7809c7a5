-- A new version. $1 text name, $2 int8 version, $3 text life, $4 text place to begin at, $5 int8 made_with,
-- $6 text read_as, $7 text filter, $8 text definition or null.
INSERT INTO gesta_projections (name, version, life, state, checkpoint, floor, made_with, read_as, filter, definition)
VALUES ($1::text, $2::int8, $3::text, 'running', $4::text, $4::text, $5::int8, $6::text, $7::text, $8::text)
