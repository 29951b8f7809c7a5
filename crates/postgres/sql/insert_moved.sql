-- Notes to which place the store moves. Binds: $1 uuid of the move, $2 text place. One row.
INSERT INTO moved (id, place) VALUES ($1, $2)
