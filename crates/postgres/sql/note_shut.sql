-- Notes that the store is shut, and what was copied of it. Binds: $1 uuid of the move, $2 text. One row, if the store
-- moves by this move.
UPDATE moved SET is_shut = true, copied = $2 WHERE id = $1
