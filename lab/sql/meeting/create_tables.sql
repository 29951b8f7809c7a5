-- The tables of a meeting, in a schema of its own. Created by whoever comes first; may fail when two come at once.
--
-- Binds: none; {schema} is its name. Locks: catalogue rows. Rows: none.
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.members (
    member integer PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS {schema}.posts (
    gathering integer NOT NULL,
    member    integer NOT NULL,
    body      text    NOT NULL,
    PRIMARY KEY (gathering, member)
);
