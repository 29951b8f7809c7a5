-- The last row of each log but for the one that closes it, in the order of the logs, by position and checksum; NULL if
-- there is none. No binds. Index: one step in events_pkey for each log.
SELECT e.position, e.checksum
FROM store AS s
CROSS JOIN generate_series(0, s.logs - 1) AS l(log)
LEFT JOIN LATERAL (SELECT position, checksum FROM events
                   WHERE log = l.log::smallint AND position < 9223372036854775807
                   ORDER BY log DESC, position DESC LIMIT 1) AS e ON true
ORDER BY l.log
