-- Makes the retention role of the store in the current schema. Nobody is a member of it until somebody grants it.
-- Needs CREATEROLE. Without it the store works, but for scavenging; an administrator may run this later,
-- with search_path set to the store's schema. Then it is granted to the user that scavenges and moves logs: not to the
-- user of a server, who could delete events.
DO $$
DECLARE
    retention text := current_schema() || '_retention';
BEGIN
    BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', retention);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;
    END;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), retention);
    EXECUTE format('GRANT SELECT, DELETE ON events, tags TO %I', retention);
    EXECUTE format('GRANT SELECT ON streams, types, store TO %I', retention);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON scavenges TO %I', retention);
END
$$;
