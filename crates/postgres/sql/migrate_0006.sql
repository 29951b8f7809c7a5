-- Schema version 6: the timeline beside the incarnation, and what the database itself refuses. Adds columns, a check
-- and triggers, so programs of version 5 that have the store open are not disturbed by it. Explained in
-- docs/internals/schema-postgres.md.

-- The changes of `events` below wait for the appends under way. If they must wait for anything longer, such as pg_dump,
-- they give up, because new appends would wait behind them.
SET LOCAL lock_timeout = '5s';

-- Where the store was seen last: the cluster's identifier, the timeline, and whether synchronous standbys were
-- configured. NULL: not noted yet.
ALTER TABLE store
    ADD COLUMN cluster     bigint,
    ADD COLUMN timeline    bigint,
    ADD COLUMN synchronous boolean;

-- Whoever may begin a new incarnation may note the timeline.
DO $$
DECLARE
    may record;
BEGIN
    FOR may IN
        SELECT grantee FROM information_schema.column_privileges
        WHERE table_schema = current_schema() AND table_name = 'store' AND column_name = 'incarnation'
          AND privilege_type = 'UPDATE' AND grantee <> current_user
    LOOP
        EXECUTE format('GRANT UPDATE (cluster, timeline, synchronous) ON store TO %s',
                       CASE WHEN may.grantee = 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(may.grantee) END);
    END LOOP;
END
$$;

-- No event is stored in a log that the store does not have. Rows that are there are not looked at.
CREATE FUNCTION limit_logs(logs integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE events ADD CONSTRAINT events_log_check CHECK (log >= 0 AND log < %s) NOT VALID', logs);
END
$$;

-- For a store that exists; a new one gets the check when its number of logs is known.
SELECT limit_logs(logs) FROM store;

-- The triggers fire whatever `session_replication_role` is.
ALTER TABLE events ENABLE ALWAYS TRIGGER events_refuse_change;
ALTER TABLE streams ENABLE ALWAYS TRIGGER streams_refuse_change;
ALTER TABLE types ENABLE ALWAYS TRIGGER types_refuse_change;
ALTER TABLE tags ENABLE ALWAYS TRIGGER tags_refuse_change;
ALTER TABLE virtual_entries ENABLE ALWAYS TRIGGER virtual_entries_refuse_change;

-- The last event of a log stays, for the retention role too: without it the next event would get the same position, and
-- nobody would see that one is gone. In a log that is closed in this database the row that closes it is the last one.
CREATE FUNCTION refuse_loss_of_end() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    shortened smallint;
BEGIN
    EXECUTE format(
        'SELECT g.log FROM (SELECT log, max(position) AS position FROM gone '
        'WHERE position < 9223372036854775807 GROUP BY log) AS g '
        'WHERE NOT EXISTS (SELECT FROM %I.%I AS e WHERE e.log = g.log AND e.position > g.position) LIMIT 1',
        TG_TABLE_SCHEMA, TG_TABLE_NAME) INTO shortened;
    IF shortened IS NOT NULL THEN
        RAISE EXCEPTION 'DELETE of the last event of log % is refused: its position would be used again', shortened
            USING HINT = 'Delete only events that later events follow; gesta scavenge does.';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER events_refuse_loss_of_end AFTER DELETE ON events
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION refuse_loss_of_end();
ALTER TABLE events ENABLE ALWAYS TRIGGER events_refuse_loss_of_end;
