-- The note about a move of the store to another database. No binds. One row.
SELECT id, place, copied, is_shut, opening, opened FROM moved
