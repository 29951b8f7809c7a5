-- Switches virtual streams on or off. $1 boolean. One row: whether they are on, up to which event the log was looked at.
UPDATE virtual_index SET is_on = $1 RETURNING is_on, position
