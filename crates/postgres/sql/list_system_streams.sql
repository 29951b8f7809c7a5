-- Names between two bounds in binary order. Binds as in list_streams.sql. Index: a range of streams_name_key.
SELECT name FROM streams WHERE name >= $1 AND name > $2 AND name < $3 ORDER BY name LIMIT $4
