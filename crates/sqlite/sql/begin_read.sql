-- Begins a snapshot with the first read that follows. Rows: none.
BEGIN DEFERRED;
