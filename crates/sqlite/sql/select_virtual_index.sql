-- What is kept for virtual streams. Rows: one (on or off, position up to which the log was looked at).
SELECT is_on, position FROM virtual_index WHERE id = 1;
