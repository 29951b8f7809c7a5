-- Writes the copy of the map of a new store, whose tables are empty but for the row in `clusters`, in one statement. $1
-- uuid store, $2 bigint version, $3 uuid origin, $4 uuid this database, $5 uuid[] databases, $6 text[] their names, $7
-- integer[] for each log from 0 the number of its database, $8 bigint[], $9 bigint[], $10 bigint[] the number of its
-- stay there, and the position and the writer of its last row when it came.
WITH named AS (
    INSERT INTO databases (number, id, name)
    SELECT number, id, name FROM unnest($5::uuid[], $6::text[]) WITH ORDINALITY AS d(id, name, number)
), mapped AS (
    INSERT INTO homes (log, database, stay, stay_position, stay_writer)
    SELECT number - 1, database, stay, position, writer
    FROM unnest($7::integer[], $8::bigint[], $9::bigint[], $10::bigint[])
         WITH ORDINALITY AS h(database, stay, position, writer, number)
), identified AS (
    UPDATE clusters SET id = $1
)
INSERT INTO map (version, origin, here) VALUES ($2, $3, $4)
