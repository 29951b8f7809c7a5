-- The last moves of leases, newest first. No binds. At most 1,000 rows.
SELECT log, lag(to_node) OVER (PARTITION BY log ORDER BY number) AS from_node, to_node, epoch, reason, at
FROM moves ORDER BY number DESC LIMIT 1000
