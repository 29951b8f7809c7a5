-- This database's copy of the map of the logs, in one row; arrays are in order of number and log. No binds.
SELECT m.version, m.origin, m.here, m.moving_log, m.moving_to, c.id AS store,
       ARRAY(SELECT id FROM databases ORDER BY number) AS databases,
       ARRAY(SELECT name FROM databases ORDER BY number) AS names,
       ARRAY(SELECT number FROM databases ORDER BY number) AS numbers,
       ARRAY(SELECT log FROM homes ORDER BY log) AS logs,
       ARRAY(SELECT database FROM homes ORDER BY log) AS homes,
       ARRAY(SELECT stay FROM homes ORDER BY log) AS stays,
       ARRAY(SELECT stay_position FROM homes ORDER BY log) AS stay_positions,
       ARRAY(SELECT stay_writer FROM homes ORDER BY log) AS stay_writers,
       ARRAY(SELECT arrived FROM homes ORDER BY log) AS arrived
FROM map AS m, clusters AS c
