-- Holds the note about a move until commit. $1 uuid of the move. One row, none if it is another move.
SELECT is_shut, opened FROM moved WHERE id = $1 FOR UPDATE
