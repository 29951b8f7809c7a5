-- Whether there is any event, of any log. No binds. One row at most. Index: the first entry of events_pkey.
SELECT log FROM events ORDER BY log, position LIMIT 1
