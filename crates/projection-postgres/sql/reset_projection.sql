-- Counts a reset, on a row that the fence of this transaction has locked: the checkpoint that the fence has set is the
-- floor from now on. $1 text name, $2 int8 version.
UPDATE gesta_projections SET resets = resets + 1, events = 0, applied_at = NULL, floor = checkpoint
WHERE name = $1::text AND version = $2::int8
