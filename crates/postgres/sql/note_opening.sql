-- Notes that the target is about to be opened. Binds: $1 uuid of the move, $2 uuid of the opening. One row, also if
-- that is noted already, so that it is a commit in any case; none if the store moves by another move, is not shut, is
-- to be opened by another opening, or was opened.
UPDATE moved SET opening = $2 WHERE id = $1 AND is_shut AND NOT opened AND coalesce(opening = $2, true)
