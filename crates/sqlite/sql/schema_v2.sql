-- Schema version 2: virtual streams. Adds tables only. Described column by column in docs/internals/schema.md.

-- Whether virtual streams are kept, and up to which event the log was looked at for them.
CREATE TABLE virtual_index (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    is_on    INTEGER NOT NULL CHECK (is_on IN (0, 1)),
    position INTEGER NOT NULL CHECK (position >= 0)
) STRICT;

INSERT INTO virtual_index (id, is_on, position) VALUES (1, 0, 0);

CREATE TABLE virtual_streams (
    id            INTEGER PRIMARY KEY CHECK (id > 0),
    name          TEXT    NOT NULL COLLATE BINARY UNIQUE,
    next_revision INTEGER NOT NULL CHECK (next_revision > 0)
) STRICT;

CREATE TABLE virtual_entries (
    stream   INTEGER NOT NULL,
    revision INTEGER NOT NULL CHECK (revision >= 0),
    position INTEGER NOT NULL CHECK (position > 0),
    PRIMARY KEY (stream, revision)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER virtual_streams_are_not_deleted BEFORE DELETE ON virtual_streams
BEGIN SELECT RAISE(ABORT, 'virtual streams are never deleted'); END;

CREATE TRIGGER virtual_entries_are_not_updated BEFORE UPDATE ON virtual_entries
BEGIN SELECT RAISE(ABORT, 'entries of virtual streams are never updated'); END;

CREATE TRIGGER virtual_entries_are_not_deleted BEFORE DELETE ON virtual_entries
BEGIN SELECT RAISE(ABORT, 'entries of virtual streams are never deleted'); END;
