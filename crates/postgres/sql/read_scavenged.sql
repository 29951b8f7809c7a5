-- How many events scavenging has removed. No binds. One row. The number grows whenever scavenging removes something.
SELECT coalesce(sum(events), 0)::bigint FROM scavenges
