-- The last row of the log, by what identifies it. Index: primary key, backwards. Rows: at most one.
SELECT position, writer, created FROM events ORDER BY position DESC LIMIT 1;
