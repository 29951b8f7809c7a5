-- Schema version 2: the registry of nodes and leases. Adds tables only, so programs of version 1 are not disturbed by it.
-- Explained in docs/internals/schema-postgres.md and docs/internals/leases.md.

-- One row for each address that a node has had. Every beat rewrites one, so pages keep room for that (HOT), and are
-- vacuumed by count, not by share.
CREATE TABLE nodes (
    generation   bigint      NOT NULL,
    beat         bigint      NOT NULL,
    started      timestamptz NOT NULL,
    beat_at      timestamptz NOT NULL,
    id           integer     GENERATED ALWAYS AS IDENTITY,
    weight       integer     NOT NULL,
    protocol_min integer     NOT NULL,
    protocol_max integer     NOT NULL,
    state        text        COLLATE "C" NOT NULL,
    address      text        COLLATE "C" NOT NULL,
    build        text        COLLATE "C" NOT NULL,
    unreachable  integer[]   NOT NULL,
    CONSTRAINT nodes_pkey PRIMARY KEY (id),
    CONSTRAINT nodes_address_key UNIQUE (address),
    CONSTRAINT nodes_state_check CHECK (state IN ('up', 'draining', 'left'))
)
WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0,
      autovacuum_analyze_threshold = 1000000);

-- One row for each log.
CREATE TABLE leases (
    generation bigint      NOT NULL DEFAULT 0,
    epoch      bigint      NOT NULL DEFAULT 0,
    since      timestamptz NOT NULL DEFAULT now(),
    owner      integer,
    next_owner integer,
    pinned     integer,
    log        smallint    NOT NULL,
    frozen     boolean     NOT NULL DEFAULT false,
    CONSTRAINT leases_pkey PRIMARY KEY (log)
)
WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0,
      autovacuum_analyze_threshold = 1000000);

-- The last moves of leases, for people.
CREATE TABLE moves (
    number  bigint      GENERATED ALWAYS AS IDENTITY,
    epoch   bigint      NOT NULL,
    at      timestamptz NOT NULL,
    to_node integer,
    log     smallint    NOT NULL,
    reason  text        COLLATE "C" NOT NULL,
    CONSTRAINT moves_pkey PRIMARY KEY (number)
);

-- One row: what the nodes of the store know each other by.
CREATE TABLE clusters (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    CONSTRAINT clusters_pkey PRIMARY KEY (id)
);
INSERT INTO clusters DEFAULT VALUES;

-- For a store that exists; a new one gets its leases when its number of logs is known.
INSERT INTO leases (log) SELECT generate_series(0, logs - 1) FROM store;
