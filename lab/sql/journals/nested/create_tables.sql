-- SwissBorg's akka-persistence-postgres with nested partitions: one per entity, and in it ranges of sequence numbers.
-- All of them are made while events are written.
--
-- Needs: the operator class gin__int_ops of the extension intarray, in the search path.
CREATE TABLE journal (
    ordering        bigserial,
    sequence_number bigint  NOT NULL,
    deleted         boolean NOT NULL DEFAULT false,
    persistence_id  text    NOT NULL,
    message         bytea   NOT NULL,
    tags            integer[],
    metadata        jsonb   NOT NULL,
    PRIMARY KEY (persistence_id, sequence_number)
) PARTITION BY LIST (persistence_id);
CREATE INDEX journal_ordering_idx ON journal USING brin (ordering);
CREATE INDEX journal_tags_idx ON journal USING gin (tags gin__int_ops);
