-- Schema version 4: virtual streams. Adds tables only, so programs of version 3 that have the store open are not
-- disturbed by it. Explained in docs/internals/schema-postgres.md and docs/internals/virtual-streams.md.

-- One row: whether virtual streams are kept, and up to which event the log was looked at for them. It is rewritten with
-- every page of entries, so its page keeps room for that (HOT).
CREATE TABLE virtual_index (
    position bigint  NOT NULL,
    one      boolean NOT NULL DEFAULT true,
    is_on    boolean NOT NULL,
    CONSTRAINT virtual_index_pkey PRIMARY KEY (one),
    CONSTRAINT virtual_index_one_row CHECK (one),
    CONSTRAINT virtual_index_position_check CHECK (position >= 0)
)
WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0,
      autovacuum_analyze_threshold = 1000000);

INSERT INTO virtual_index (position, is_on) VALUES (0, false);

-- One row for each virtual stream that has an entry.
CREATE TABLE virtual_streams (
    id            bigint NOT NULL,
    next_revision bigint NOT NULL,
    name          text   COLLATE "C" NOT NULL,
    CONSTRAINT virtual_streams_pkey PRIMARY KEY (id),
    CONSTRAINT virtual_streams_name_key UNIQUE (name),
    CONSTRAINT virtual_streams_next_revision_check CHECK (next_revision > 0)
)
WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 1000000);

-- One row for each place of a virtual stream: three numbers.
CREATE TABLE virtual_entries (
    stream   bigint NOT NULL,
    revision bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT virtual_entries_pkey PRIMARY KEY (stream, revision)
)
WITH (autovacuum_vacuum_insert_threshold = 10000000, autovacuum_analyze_threshold = 1000000);

CREATE TRIGGER virtual_entries_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON virtual_entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
