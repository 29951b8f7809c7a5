-- The journal of akka-persistence-jdbc 5: a number over all events and a number in the entity, each with an index.
--
-- Locks: none that matter; the schema is new.
CREATE TABLE event_journal (
    ordering             bigserial,
    persistence_id       varchar(255) NOT NULL,
    sequence_number      bigint       NOT NULL,
    deleted              boolean      NOT NULL DEFAULT false,
    writer               varchar(255) NOT NULL,
    write_timestamp      bigint,
    adapter_manifest     varchar(255),
    event_ser_id         integer      NOT NULL,
    event_ser_manifest   varchar(255) NOT NULL,
    event_payload        bytea        NOT NULL,
    meta_ser_id          integer,
    meta_ser_manifest    varchar(255),
    meta_payload         bytea,
    PRIMARY KEY (persistence_id, sequence_number)
);
CREATE UNIQUE INDEX event_journal_ordering_idx ON event_journal (ordering);
