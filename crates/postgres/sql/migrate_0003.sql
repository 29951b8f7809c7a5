-- Schema version 3: in which database of the store each log lies. Adds tables only, so programs of version 2 that have
-- the store open are not disturbed by it. Explained in docs/internals/schema-postgres.md.

-- One row for each database of the store, this one among them; the same rows in all of them.
CREATE TABLE databases (
    number integer NOT NULL,
    id     uuid    NOT NULL,
    name   text    COLLATE "C" NOT NULL,
    CONSTRAINT databases_pkey PRIMARY KEY (number),
    CONSTRAINT databases_id_key UNIQUE (id)
);

-- One row for each log, all of the store; the same rows in all databases.
CREATE TABLE homes (
    database integer  NOT NULL,
    log      smallint NOT NULL,
    CONSTRAINT homes_pkey PRIMARY KEY (log),
    CONSTRAINT homes_database_fkey FOREIGN KEY (database) REFERENCES databases (number)
);

-- One row about the two tables above. All but `here` is the same in all databases.
CREATE TABLE map (
    one        boolean  NOT NULL DEFAULT true,
    version    bigint   NOT NULL,
    origin     uuid     NOT NULL,
    here       uuid     NOT NULL,
    moving_to  integer,
    moving_log smallint,
    CONSTRAINT map_pkey PRIMARY KEY (one),
    CONSTRAINT map_one_row CHECK (one)
);

-- For a store that exists: all of its logs lie here. A new one gets its map when that is known.
INSERT INTO databases (number, id, name) SELECT 1, gen_random_uuid(), current_database() FROM store;
INSERT INTO homes (log, database) SELECT generate_series(0, logs - 1), 1 FROM store;
INSERT INTO map (version, origin, here) SELECT 1, s.incarnation, d.id FROM store AS s, databases AS d;
