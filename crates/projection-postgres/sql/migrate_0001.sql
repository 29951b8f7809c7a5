-- A row for each version of a projection. Every batch updates its row, and no column that changes is in an index: with
-- room left in the page, the new row version goes into the same one.
CREATE TABLE gesta_projections (
    name text NOT NULL,
    version bigint NOT NULL,
    -- building, active, previous, retired: what the version is to readers.
    life text NOT NULL,
    -- running, paused, stopped.
    state text NOT NULL,
    -- Counts the sessions; the fence of each batch compares it.
    epoch bigint NOT NULL DEFAULT 0,
    -- The process that has begun the last session; null once that has ended in good order.
    owner uuid,
    checkpoint text NOT NULL,
    -- Where the version began, and begins again after a reset.
    floor text NOT NULL,
    -- Hash of filter and columns.
    made_with bigint NOT NULL,
    resets bigint NOT NULL DEFAULT 0,
    -- Events applied since the last reset.
    events bigint NOT NULL DEFAULT 0,
    -- Attempts that were announced since the last commit, and how many events the last one had.
    attempts bigint NOT NULL DEFAULT 0,
    attempt_events bigint NOT NULL DEFAULT 0,
    applied_at timestamptz,
    error text,
    -- The names of the SQL views for readers, with commas between them.
    read_as text NOT NULL,
    PRIMARY KEY (name, version)
) WITH (fillfactor = 25);
CREATE UNIQUE INDEX gesta_projections_active ON gesta_projections (name) WHERE life = 'active';

-- Events that were put aside: references, not payloads.
CREATE TABLE gesta_projections_parked (
    number bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    version bigint NOT NULL,
    log bigint NOT NULL,
    position bigint NOT NULL,
    -- Null: the event was skipped for good.
    key text,
    event uuid NOT NULL,
    error text NOT NULL,
    attempts bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, version, log, position)
);
CREATE INDEX gesta_projections_parked_keys ON gesta_projections_parked (name, version, key);

-- The processes that run projections. Each renews its row, however many projections it runs.
CREATE TABLE gesta_projections_nodes (
    node uuid PRIMARY KEY,
    name text NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 25);

-- What was asked of whoever owns a projection, and the answer.
CREATE TABLE gesta_projections_commands (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    version bigint NOT NULL,
    command text NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    answer text
);
CREATE INDEX gesta_projections_commands_open ON gesta_projections_commands (number) WHERE answer IS NULL;
