-- SwissBorg's akka-persistence-postgres, plain: BRIN instead of a B-tree on the position, tags as numbers under GIN.
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
);
CREATE INDEX journal_ordering_idx ON journal USING brin (ordering);
CREATE INDEX journal_tags_idx ON journal USING gin (tags gin__int_ops);
