-- SwissBorg's akka-persistence-postgres, partitioned by position. Partitions are made while events are written.
--
-- Needs: the operator class gin__int_ops of the extension intarray, in the search path.
CREATE SEQUENCE journal_ordering_seq;
CREATE TABLE journal (
    ordering        bigint  NOT NULL,
    sequence_number bigint  NOT NULL,
    deleted         boolean NOT NULL DEFAULT false,
    persistence_id  text    NOT NULL,
    message         bytea   NOT NULL,
    tags            integer[],
    metadata        jsonb   NOT NULL,
    PRIMARY KEY (ordering)
) PARTITION BY RANGE (ordering);
CREATE INDEX journal_tags_idx ON journal USING gin (tags gin__int_ops);
