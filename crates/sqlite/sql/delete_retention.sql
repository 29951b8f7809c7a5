-- Forbids it again, before the commit. Write lock held. Rows: none.
DELETE FROM retention;
