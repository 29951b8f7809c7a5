-- Where the store was seen last, its incarnation, and whether this user may note a place. One row; NULL if nothing was
-- noted.
SELECT cluster, timeline, synchronous, incarnation,
       has_column_privilege('store', 'cluster', 'UPDATE') AND has_column_privilege('store', 'timeline', 'UPDATE')
       AND has_column_privilege('store', 'synchronous', 'UPDATE') AS may_note
FROM store
