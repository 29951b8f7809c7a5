-- Makes the note that the store moves to another database. Everybody may read it, so that every program can say where.
CREATE TABLE moved (
    one     boolean NOT NULL DEFAULT true,
    is_shut boolean NOT NULL DEFAULT false,
    id      uuid    NOT NULL,
    place   text    COLLATE "C" NOT NULL,
    copied  text    COLLATE "C",
    CONSTRAINT moved_pkey PRIMARY KEY (one),
    CONSTRAINT moved_one_row CHECK (one)
);
GRANT SELECT ON moved TO PUBLIC
