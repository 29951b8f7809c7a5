-- Takes the write lock at once: a deferred transaction could fail in the middle. Rows: none.
BEGIN IMMEDIATE;
