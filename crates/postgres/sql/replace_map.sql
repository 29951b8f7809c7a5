-- Replaces this database's copy of the map by another version, if it is still the one expected. $1 bigint the version
-- expected, $2 bigint the new one, $3 smallint the log that is being moved or NULL, $4 integer the number of its new
-- database or NULL, $5 uuid[] databases, $6 text[] their names, $7 integer[] for each log from 0 the number of its
-- database, $8 bigint[], $9 bigint[], $10 bigint[] for each log the number of its stay there, and the position and the
-- writer of its last row when it came, $11 smallint the log that comes to this database with this version, or NULL:
-- only for that log this database notes that it came. One row, locked until commit; none if the copy is of another
-- version.
WITH replaced AS (
    UPDATE map SET version = $2, moving_log = $3, moving_to = $4 WHERE version = $1 RETURNING true
), named AS (
    INSERT INTO databases (number, id, name)
    SELECT number, id, name FROM unnest($5::uuid[], $6::text[]) WITH ORDINALITY AS d(id, name, number), replaced
    ON CONFLICT (number) DO NOTHING
), mapped AS (
    UPDATE homes SET database = h.database, stay = h.stay, stay_position = h.position, stay_writer = h.writer,
                     arrived = CASE WHEN homes.log = $11 THEN h.stay ELSE homes.arrived END
    FROM unnest($7::integer[], $8::bigint[], $9::bigint[], $10::bigint[])
         WITH ORDINALITY AS h(database, stay, position, writer, number), replaced
    WHERE homes.log = h.number - 1
      AND ((homes.database, homes.stay, homes.stay_position, homes.stay_writer)
           IS DISTINCT FROM (h.database, h.stay, h.position, h.writer) OR homes.log = $11)
)
SELECT true FROM replaced
