-- The layout of akka-persistence-jdbc's journal, in the types of SQLite.
CREATE TABLE event_journal (
    ordering           INTEGER PRIMARY KEY AUTOINCREMENT,
    persistence_id     TEXT    NOT NULL,
    sequence_number    INTEGER NOT NULL,
    deleted            INTEGER NOT NULL DEFAULT 0,
    writer             TEXT    NOT NULL,
    write_timestamp    INTEGER,
    adapter_manifest   TEXT,
    event_ser_id       INTEGER NOT NULL,
    event_ser_manifest TEXT    NOT NULL,
    event_payload      BLOB    NOT NULL,
    meta_ser_id        INTEGER,
    meta_ser_manifest  TEXT,
    meta_payload       BLOB,
    UNIQUE (persistence_id, sequence_number)
);
