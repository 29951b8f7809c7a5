-- Makes the note that the store moves to another database. Everybody may read it, so that every program can say where.
-- `opening` names the opening of the target, before that happens; `opened` says that it has happened.
CREATE TABLE moved (
    one     boolean NOT NULL DEFAULT true,
    is_shut boolean NOT NULL DEFAULT false,
    opened  boolean NOT NULL DEFAULT false,
    id      uuid    NOT NULL,
    opening uuid,
    place   text    COLLATE "C" NOT NULL,
    copied  text    COLLATE "C",
    CONSTRAINT moved_pkey PRIMARY KEY (one),
    CONSTRAINT moved_one_row CHECK (one),
    CONSTRAINT moved_opening CHECK (is_shut OR opening IS NULL),
    CONSTRAINT moved_opened CHECK (opening IS NOT NULL OR NOT opened)
);
GRANT SELECT ON moved TO PUBLIC
