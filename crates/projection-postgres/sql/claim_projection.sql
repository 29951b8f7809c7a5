-- Begins a session, on a row that this transaction has locked. $1 text name, $2 int8 version, $3 uuid node. One row:
-- the epoch of the session.
UPDATE gesta_projections SET epoch = epoch + 1, owner = $3::uuid
WHERE name = $1::text AND version = $2::int8
RETURNING epoch
