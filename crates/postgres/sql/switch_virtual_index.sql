-- Switches virtual streams on or off. $1 boolean. One row: whether they are on, up to which event the log was looked
-- at; none if they are to be switched on and the store lies in several databases, which keeps none.
UPDATE virtual_index SET is_on = $1 WHERE NOT $1 OR (SELECT count(*) FROM databases) = 1 RETURNING is_on, position
