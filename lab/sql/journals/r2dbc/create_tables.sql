-- The journal of akka-persistence-r2dbc: no number over all events; slices and the time order them.
CREATE TABLE event_journal (
    slice              integer      NOT NULL,
    entity_type        varchar(255) NOT NULL,
    persistence_id     varchar(255) NOT NULL,
    seq_nr             bigint       NOT NULL,
    db_timestamp       timestamptz  NOT NULL,
    event_ser_id       integer      NOT NULL,
    event_ser_manifest varchar(255) NOT NULL,
    event_payload      bytea        NOT NULL,
    deleted            boolean      NOT NULL DEFAULT false,
    writer             varchar(255) NOT NULL,
    adapter_manifest   varchar(255),
    tags               text[],
    meta_ser_id        integer,
    meta_ser_manifest  varchar(255),
    meta_payload       bytea,
    PRIMARY KEY (persistence_id, seq_nr)
);
CREATE INDEX event_journal_slice_idx ON event_journal (slice, entity_type, db_timestamp, seq_nr);
