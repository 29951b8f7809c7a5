-- The one row about the cluster.
SELECT id FROM clusters
