-- Schema version 1. Described column by column in docs/internals/schema.md.
-- Runs once, in one transaction. The variable parts of an event come last, so that reads that need none of
-- them do not follow their overflow pages.

CREATE TABLE store (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    schema_version INTEGER NOT NULL,
    incarnation    BLOB    NOT NULL CHECK (length(incarnation) = 16),
    logs           INTEGER NOT NULL CHECK (logs = 1),
    created        INTEGER NOT NULL
) STRICT;

CREATE TABLE events (
    position     INTEGER PRIMARY KEY CHECK (position > 0),
    log          INTEGER NOT NULL DEFAULT 0 CHECK (log = 0),
    stream       INTEGER NOT NULL,
    revision     INTEGER NOT NULL CHECK (revision >= 0),
    event_id     BLOB    NOT NULL CHECK (length(event_id) = 16),
    type         INTEGER NOT NULL,
    created      INTEGER NOT NULL,
    content_type INTEGER NOT NULL CHECK (content_type IN (0, 1)),
    writer       INTEGER NOT NULL,
    checksum     INTEGER NOT NULL,
    tags         TEXT,
    metadata     BLOB    NOT NULL,
    data         BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX events_by_stream ON events (stream, revision);

CREATE TABLE streams (
    id       INTEGER PRIMARY KEY CHECK (id > 0),
    log      INTEGER NOT NULL DEFAULT 0 CHECK (log = 0),
    name     TEXT    NOT NULL COLLATE BINARY UNIQUE,
    checksum INTEGER NOT NULL
) STRICT;

CREATE TABLE types (
    id       INTEGER PRIMARY KEY CHECK (id > 0),
    log      INTEGER NOT NULL DEFAULT 0 CHECK (log = 0),
    name     TEXT    NOT NULL COLLATE BINARY UNIQUE,
    checksum INTEGER NOT NULL
) STRICT;

CREATE TABLE tags (
    tag      TEXT    NOT NULL COLLATE BINARY,
    position INTEGER NOT NULL,
    log      INTEGER NOT NULL DEFAULT 0 CHECK (log = 0),
    PRIMARY KEY (tag, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE scavenges (
    stream         INTEGER PRIMARY KEY,
    log            INTEGER NOT NULL DEFAULT 0 CHECK (log = 0),
    floor_revision INTEGER NOT NULL CHECK (floor_revision > 0),
    floor_position INTEGER NOT NULL CHECK (floor_position > 0)
) STRICT;

-- Holds a row only inside the transactions of scavenging.
CREATE TABLE retention (
    id INTEGER PRIMARY KEY CHECK (id = 1)
) STRICT;

CREATE TRIGGER events_are_not_updated BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are never updated'); END;

CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM retention)
BEGIN SELECT RAISE(ABORT, 'events are deleted by scavenging only'); END;

CREATE TRIGGER tags_are_not_updated BEFORE UPDATE ON tags
BEGIN SELECT RAISE(ABORT, 'tags are never updated'); END;

CREATE TRIGGER tags_are_not_deleted BEFORE DELETE ON tags
WHEN NOT EXISTS (SELECT 1 FROM retention)
BEGIN SELECT RAISE(ABORT, 'tags are deleted by scavenging only'); END;

CREATE TRIGGER streams_are_not_updated BEFORE UPDATE ON streams
BEGIN SELECT RAISE(ABORT, 'streams are never updated'); END;

CREATE TRIGGER streams_are_not_deleted BEFORE DELETE ON streams
BEGIN SELECT RAISE(ABORT, 'streams are never deleted'); END;

CREATE TRIGGER types_are_not_updated BEFORE UPDATE ON types
BEGIN SELECT RAISE(ABORT, 'event types are never updated'); END;

CREATE TRIGGER types_are_not_deleted BEFORE DELETE ON types
BEGIN SELECT RAISE(ABORT, 'event types are never deleted'); END;

-- For people: names instead of numbers, text instead of bytes. The store itself never reads it.
CREATE VIEW events_readable AS
SELECT e.log,
       e.position,
       s.name AS stream,
       e.revision,
       lower(substr(hex(e.event_id), 1, 8) || '-' || substr(hex(e.event_id), 9, 4) || '-'
          || substr(hex(e.event_id), 13, 4) || '-' || substr(hex(e.event_id), 17, 4) || '-'
          || substr(hex(e.event_id), 21)) AS event_id,
       t.name AS type,
       strftime('%Y-%m-%dT%H:%M:%S', e.created / 1000000, 'unixepoch')
          || printf('.%06dZ', e.created % 1000000) AS created,
       CASE e.content_type WHEN 0 THEN CAST(e.data AS TEXT) ELSE e.data END AS data,
       CAST(e.metadata AS TEXT) AS metadata,
       e.tags
FROM events AS e
JOIN streams AS s ON s.id = e.stream
JOIN types AS t ON t.id = e.type;
