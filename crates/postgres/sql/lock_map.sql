-- Holds this database's copy of the map as it is until commit. $1 bigint its version. One row; none if it is another.
SELECT true FROM map WHERE version = $1 FOR SHARE
