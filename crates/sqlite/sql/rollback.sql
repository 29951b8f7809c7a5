-- Undoes. Rows: none.
ROLLBACK;
