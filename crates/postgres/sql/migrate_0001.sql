-- Schema version 1: everything. Run by `gesta schema create`, or by hand from `gesta schema print`,
-- with search_path set to the store's schema. Explained in docs/internals/schema-postgres.md.

-- Columns of 8 bytes first, so that no row holds padding.
CREATE TABLE events (
    position     bigint      NOT NULL,
    stream       bigint      NOT NULL,
    revision     bigint      NOT NULL,
    type         bigint      NOT NULL,
    created      timestamptz NOT NULL,
    writer       bigint      NOT NULL,
    checksum     bigint      NOT NULL,
    event_id     uuid        NOT NULL,
    log          smallint    NOT NULL,
    content_type smallint    NOT NULL,
    data         bytea       NOT NULL,
    metadata     bytea       NOT NULL,
    tags         text[],
    packed       bytea,
    CONSTRAINT events_pkey PRIMARY KEY (log, position),
    CONSTRAINT events_stream_revision_key UNIQUE (log, stream, revision)
)
-- Rows are only added, and no plan rests on counts: a growing store is not vacuumed and analysed every minute.
WITH (autovacuum_vacuum_insert_threshold = 10000000, autovacuum_analyze_threshold = 1000000);

CREATE TABLE streams (
    id       bigint   NOT NULL,
    checksum bigint   NOT NULL,
    log      smallint NOT NULL,
    name     text     COLLATE "C" NOT NULL,
    CONSTRAINT streams_pkey PRIMARY KEY (log, id),
    CONSTRAINT streams_name_key UNIQUE (name)
);

CREATE TABLE types (
    id       bigint   NOT NULL,
    checksum bigint   NOT NULL,
    log      smallint NOT NULL,
    name     text     COLLATE "C" NOT NULL,
    CONSTRAINT types_pkey PRIMARY KEY (log, id),
    CONSTRAINT types_name_key UNIQUE (log, name)
);

CREATE TABLE tags (
    position bigint   NOT NULL,
    log      smallint NOT NULL,
    tag      text     COLLATE "C" NOT NULL,
    CONSTRAINT tags_pkey PRIMARY KEY (log, tag, position)
);

CREATE TABLE scavenges (
    stream        bigint      NOT NULL,
    last_revision bigint      NOT NULL,
    last_position bigint      NOT NULL,
    events        bigint      NOT NULL,
    payload_bytes bigint      NOT NULL,
    scavenged     timestamptz NOT NULL DEFAULT now(),
    log           smallint    NOT NULL,
    CONSTRAINT scavenges_pkey PRIMARY KEY (log, stream)
);

CREATE TABLE store (
    one            boolean     NOT NULL DEFAULT true,
    schema_version integer     NOT NULL,
    logs           smallint    NOT NULL,
    incarnation    uuid        NOT NULL,
    created        timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT store_pkey PRIMARY KEY (one),
    CONSTRAINT store_one_row CHECK (one)
);

-- Data that a client has compressed; then `data` is empty. To compress them again would be in vain.
ALTER TABLE events ALTER COLUMN packed SET STORAGE EXTERNAL;

-- Never pglz: it costs a factor of 4.7 on large payloads.
DO $$
BEGIN
    ALTER TABLE events
        ALTER COLUMN data SET COMPRESSION lz4,
        ALTER COLUMN metadata SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    ALTER TABLE events
        ALTER COLUMN data SET STORAGE EXTERNAL,
        ALTER COLUMN metadata SET STORAGE EXTERNAL;
END
$$;

-- Stored events are history: nobody changes them, and only the retention role removes some.
CREATE FUNCTION refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_user = TG_TABLE_SCHEMA || '_retention' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% of %.% is refused: stored events are never changed', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING HINT = 'Only the role ' || TG_TABLE_SCHEMA || '_retention may delete; gesta scavenge uses it.';
END
$$;

CREATE TRIGGER events_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER streams_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON streams
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER types_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON types
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER tags_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON tags
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Bytes as text; NULL if they are not UTF-8.
CREATE FUNCTION as_text(value bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN convert_from(value, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END
$$;

CREATE VIEW events_readable AS
SELECT e.log, e.position, s.name AS stream, e.revision, t.name AS type, e.created, e.event_id AS id,
       CASE WHEN e.content_type IN (0, 2) THEN 'application/json' ELSE 'application/octet-stream' END AS content_type,
       e.packed IS NOT NULL AS is_compressed,
       CASE e.content_type WHEN 0 THEN as_text(e.data) END AS data_text,
       coalesce(e.packed, e.data) AS data, as_text(e.metadata) AS metadata_text, e.metadata, e.tags
FROM events e
JOIN streams s ON s.log = e.log AND s.id = e.stream
JOIN types t ON t.log = e.log AND t.id = e.type;
