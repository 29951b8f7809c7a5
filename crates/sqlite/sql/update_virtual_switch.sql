-- Switches virtual streams. Binds: 1 on (1) or off (0). Write lock held. Rows: none.
UPDATE virtual_index SET is_on = ?1 WHERE id = 1;
