-- Waits until no transaction of an owner is open. $1 text name, $2 int8 version. One row, locked until the end of the
-- transaction, or none.
SELECT epoch FROM gesta_projections WHERE name = $1::text AND version = $2::int8 FOR NO KEY UPDATE
