-- Where a store is that has moved to another database. One row.
SELECT place FROM moved;
