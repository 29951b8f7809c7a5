-- One row if the last row of the log is the one named ($2 = 0: if the log is empty), none otherwise.
-- Binds: $1 smallint log, $2 bigint position, $3 bigint writer. Index: one backward step in events_pkey.
-- A row can be visible although no synchronous standby has it: a crash, or the end of its session, cuts the wait short. So
-- with synchronous standbys the row given is a commit of its own (a message without content): it waits until they have
-- everything up to it. Without them this writes nothing.
SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''
            THEN pg_logical_emit_message(true, 'gesta', ''::text) END
WHERE coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                WHERE last.log = $1::smallint ORDER BY last.log DESC, last.position DESC LIMIT 1),
               $2 = 0)
