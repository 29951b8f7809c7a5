-- Journal of SwissBorg akka-persistence-postgres, plain, with its tags as an array of numbers. Indexes come after the
-- filling. The table of the tags' names is left out: readers and writers keep the few numbers in memory.
--
-- Binds: none. Locks: catalogue rows. Rows: none.
CREATE TABLE journal (
    ordering        bigserial NOT NULL,
    sequence_number bigint    NOT NULL,
    deleted         boolean   NOT NULL DEFAULT false,
    persistence_id  text      NOT NULL,
    message         bytea     NOT NULL,
    tags            integer[],
    metadata        jsonb     NOT NULL
);
