-- The tables of Elixir EventStore 1.3: events once, and a link per stream that holds them; row 0 of streams is $all.
-- Every change of a stream is notified.
CREATE TABLE streams (
    stream_id      bigserial   PRIMARY KEY,
    stream_uuid    text        NOT NULL,
    stream_version bigint      NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT now(),
    deleted_at     timestamptz
);
CREATE UNIQUE INDEX streams_stream_uuid_idx ON streams (stream_uuid);
CREATE TABLE events (
    event_id       uuid        PRIMARY KEY,
    event_type     text        NOT NULL,
    causation_id   uuid,
    correlation_id uuid,
    data           bytea       NOT NULL,
    metadata       bytea,
    created_at     timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE stream_events (
    event_id                uuid   NOT NULL REFERENCES events (event_id),
    stream_id               bigint NOT NULL REFERENCES streams (stream_id),
    stream_version          bigint NOT NULL,
    original_stream_id      bigint REFERENCES streams (stream_id),
    original_stream_version bigint,
    PRIMARY KEY (event_id, stream_id)
);
CREATE UNIQUE INDEX stream_events_stream_version_idx ON stream_events (stream_id, stream_version);
INSERT INTO streams (stream_id, stream_uuid, stream_version) VALUES (0, '$all', 0);
CREATE FUNCTION tell_of_stream() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    first_version bigint := 1;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        first_version := OLD.stream_version + 1;
    END IF;
    PERFORM pg_notify(TG_TABLE_SCHEMA || '.events',
                      concat_ws(',', NEW.stream_uuid, NEW.stream_id, first_version, NEW.stream_version));
    RETURN NULL;
END $$;
CREATE TRIGGER stream_changed AFTER INSERT OR UPDATE ON streams FOR EACH ROW EXECUTE FUNCTION tell_of_stream();
