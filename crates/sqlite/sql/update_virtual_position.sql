-- Moves the position up to which the log was looked at, if it is still the one that is expected, virtual streams are
-- on, and the log has the event of this writer at the new one. Binds: 1 position expected, 2 new position, 3 writer.
-- Write lock held. Changes: one row, or none.
UPDATE virtual_index SET position = ?2
WHERE id = 1 AND is_on = 1 AND position = ?1
  AND EXISTS (SELECT 1 FROM events WHERE position = ?2 AND writer = ?3);
