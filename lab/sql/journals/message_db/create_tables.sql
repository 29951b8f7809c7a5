-- Message DB 1.3: one table, a unique number in each stream, an index by category, and the functions to write it with.
CREATE TABLE messages (
    global_position bigserial NOT NULL PRIMARY KEY,
    position        bigint    NOT NULL,
    "time"          timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc'),
    stream_name     text      NOT NULL,
    type            text      NOT NULL,
    data            jsonb,
    metadata        jsonb,
    id              uuid      NOT NULL DEFAULT gen_random_uuid()
);
-- What stands before the first dash.
CREATE FUNCTION category(stream_name varchar) RETURNS varchar LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN split_part(category.stream_name, '-', 1);
END $$;
-- The first 64 bits of the MD5 digest.
CREATE FUNCTION hash_64(value varchar) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ('x' || left(md5(hash_64.value), 16))::bit(64)::bigint;
END $$;
-- Number of the last message of a stream; none if there is none.
CREATE FUNCTION stream_version(stream_name varchar) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT max(messages.position) FROM messages WHERE messages.stream_name = stream_version.stream_name);
END $$;
-- Lets one transaction at a time write to a category, so that a reader of the category misses nothing.
CREATE FUNCTION acquire_lock(stream_name varchar) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    key bigint := hash_64(category(acquire_lock.stream_name));
BEGIN
    PERFORM pg_advisory_xact_lock(key);
    RETURN key;
END $$;
-- Writes one message and returns its number in the stream. Expected version -1: the stream is not there yet.
CREATE FUNCTION write_message(id varchar, stream_name varchar, type varchar, data jsonb,
                              metadata jsonb DEFAULT NULL, expected_version bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found bigint;
BEGIN
    PERFORM acquire_lock(write_message.stream_name);
    found := coalesce(stream_version(write_message.stream_name), -1);
    IF write_message.expected_version IS NOT NULL AND write_message.expected_version <> found THEN
        RAISE EXCEPTION 'wrong expected version' USING DETAIL = format(
            'expected %s, found %s in %s', write_message.expected_version, found, write_message.stream_name);
    END IF;
    INSERT INTO messages (id, stream_name, position, type, data, metadata)
    VALUES (write_message.id::uuid, write_message.stream_name, found + 1, write_message.type, write_message.data,
            write_message.metadata);
    RETURN found + 1;
END $$;
CREATE UNIQUE INDEX messages_id ON messages (id);
CREATE UNIQUE INDEX messages_stream ON messages (stream_name, position);
CREATE INDEX messages_category ON messages (category(stream_name), global_position,
                                            category(metadata ->> 'correlationStreamName'));
