ALTER TABLE gesta_projections
    -- Which events the rows are made of: a JSON array of queries. Null until a program registers the version that
    -- stores it.
    ADD COLUMN filter text,
    -- What an index is made of: a JSON array of its paths. Null for code.
    ADD COLUMN definition text,
    -- Place of the first event of the attempt that was announced last: `attempts` is its number, 0 for none, and
    -- `attempt_events` its size.
    ADD COLUMN attempt_log bigint,
    ADD COLUMN attempt_position bigint,
    -- Whether parked events are applied again.
    ADD COLUMN attempt_is_replay boolean NOT NULL DEFAULT false;
