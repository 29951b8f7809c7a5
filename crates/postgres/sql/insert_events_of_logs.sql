-- Stores batches of several logs, each after the row that must be the last of its log: one transaction, many chains.
--
-- Binds: $1 smallint[] the logs; $2 bigint[] position and $3 bigint[] writer of the row that must be the last of each
--        (position 0: the log must be empty); $4.. one array per column, one element per event, in order of log, the
--        positions ($4) of each log counting on from its row without a gap. A log without events is only confirmed.
-- Rows:  one: the logs whose row is the last; the number of events stored, which is all of these logs; NULL.
-- Locks: ROW EXCLUSIVE on events; a racing insert of the same position waits for the first one's end. All sessions
--        insert in order of log, and events before names, so they do not wait for each other in a circle.
-- Index: for each log one backward step in events_pkey for its condition, then inserts into both.
--
-- Each condition is evaluated once, on the statement's snapshot, as in insert_events.sql. A log whose condition does
-- not hold stores nothing, while the others do; a violation of a key undoes the whole statement.
-- With synchronous standbys the answer is a commit although no log has stored anything, as in confirm_end.sql.
WITH good AS MATERIALIZED (
    SELECT l.log
    FROM (SELECT unnest($1::smallint[]) AS log, unnest($2::bigint[]) AS position, unnest($3::bigint[]) AS writer) AS l
    WHERE coalesce((SELECT last.position = l.position AND last.writer = l.writer FROM events AS last
                    WHERE last.log = l.log ORDER BY last.log DESC, last.position DESC LIMIT 1),
                   l.position = 0)
), stored AS (
    INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type,
                        data, metadata)
    SELECT position, stream, revision, type, created, writer, checksum, event_id, log, content_type, data, metadata
    FROM (SELECT unnest($4::bigint[]) AS position, unnest($5::bigint[]) AS stream, unnest($6::bigint[]) AS revision,
                 unnest($7::bigint[]) AS type, unnest($8::timestamptz[]) AS created, unnest($9::bigint[]) AS writer,
                 unnest($10::bigint[]) AS checksum, unnest($11::uuid[]) AS event_id, unnest($12::smallint[]) AS log,
                 unnest($13::smallint[]) AS content_type, unnest($14::bytea[]) AS data,
                 unnest($15::bytea[]) AS metadata) AS rows
    WHERE log = ANY (ARRAY(SELECT log FROM good))
    RETURNING log
)
SELECT ARRAY(SELECT log FROM good) AS logs, (SELECT count(*) FROM stored) AS events,
       CASE WHEN current_setting('synchronous_standby_names') <> '' AND EXISTS (SELECT FROM good)
            THEN pg_logical_emit_message(true, 'gesta', ''::text) END AS committed
