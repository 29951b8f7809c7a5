-- Commits; with synchronous=FULL it returns when the WAL is on disk. Rows: none.
COMMIT;
