-- Where a store is that has moved to another database. No binds. One row.
SELECT place FROM moved
