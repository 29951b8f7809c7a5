-- What is kept for virtual streams: whether they are on, and up to which event the log was looked at. No binds. One row.
SELECT is_on, position FROM virtual_index
