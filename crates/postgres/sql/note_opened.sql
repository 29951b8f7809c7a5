-- Notes that the target was opened. Binds: $1 uuid of the move, $2 uuid of the opening. One row; none if the store
-- moves by another move, is not shut, or is to be opened by another opening.
UPDATE moved SET opening = $2, opened = true WHERE id = $1 AND is_shut AND coalesce(opening = $2, true)
