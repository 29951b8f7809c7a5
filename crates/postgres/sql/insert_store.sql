-- Names the store's first life. $1 integer schema version, $2 smallint logs, $3 uuid incarnation. One row.
INSERT INTO store (schema_version, logs, incarnation) VALUES ($1, $2, $3)
