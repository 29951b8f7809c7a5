-- Takes the events of a store that has moved away from all who read or append, whatever they have prepared: in the place
-- of the tables stand views that only say where the store is. Nothing is removed. Whoever is planned for, fails: the
-- function is called immutable so that it is called when a statement is planned, also one that would find no row.
LOCK TABLE events, streams IN ACCESS EXCLUSIVE MODE;
ALTER TABLE events RENAME TO moved_events;
ALTER TABLE streams RENAME TO moved_streams;

CREATE FUNCTION moved_away() RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE
    noted text;
BEGIN
    SELECT m.place INTO noted FROM moved AS m;
    -- The code is that of an object in use: programs count it as a failure after which nothing is stored.
    RAISE EXCEPTION 'the store has moved to %: use it there', noted
        USING ERRCODE = '55006', CONSTRAINT = 'gesta_moved';
END
$$;

CREATE FUNCTION refuse_moved() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM moved_away();
    RETURN NULL;
END
$$;

CREATE VIEW events AS SELECT * FROM moved_events WHERE moved_away();
CREATE VIEW streams AS SELECT * FROM moved_streams WHERE moved_away();
CREATE TRIGGER events_refuse_moved INSTEAD OF INSERT OR UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION refuse_moved();
CREATE TRIGGER streams_refuse_moved INSTEAD OF INSERT OR UPDATE OR DELETE ON streams
    FOR EACH ROW EXECUTE FUNCTION refuse_moved();
-- Who has no right to the views would be told that, and not where the store is.
GRANT SELECT, INSERT, UPDATE, DELETE ON events, streams TO PUBLIC
