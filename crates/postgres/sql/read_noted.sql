-- Where the store was seen last, and its incarnation. One row; NULL if nothing was noted.
SELECT cluster, timeline, synchronous, incarnation FROM store
