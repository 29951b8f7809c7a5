-- Version 1: the tables of a target. `checkpoint` and `floor` are texts of checkpoints; times are microseconds or,
-- in `until`, milliseconds since 1970; `owner` and `node` are UUIDs.
CREATE TABLE gesta_projections (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    life TEXT NOT NULL,
    state TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner BLOB,
    checkpoint TEXT NOT NULL,
    floor TEXT NOT NULL,
    made_with INTEGER NOT NULL,
    resets INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    attempt_events INTEGER NOT NULL DEFAULT 0,
    applied_at INTEGER,
    error TEXT,
    read_as TEXT NOT NULL,
    PRIMARY KEY (name, version)
) STRICT;
CREATE UNIQUE INDEX gesta_projections_active ON gesta_projections (name) WHERE life = 'active';
CREATE TABLE gesta_projections_parked (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    log INTEGER NOT NULL,
    position INTEGER NOT NULL,
    key TEXT,
    event BLOB NOT NULL,
    error TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    at INTEGER NOT NULL,
    UNIQUE (name, version, log, position)
) STRICT;
CREATE INDEX gesta_projections_parked_keys ON gesta_projections_parked (name, version, key);
CREATE TABLE gesta_projections_nodes (
    node BLOB PRIMARY KEY,
    name TEXT NOT NULL,
    until INTEGER NOT NULL
) STRICT;
CREATE TABLE gesta_projections_commands (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    command TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    answer TEXT
) STRICT;
CREATE TABLE gesta_projections_schema (version INTEGER NOT NULL) STRICT;
INSERT INTO gesta_projections_schema VALUES (1);
