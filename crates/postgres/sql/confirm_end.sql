-- One row if the last row of the log is the one named ($2 = 0: if the log is empty), none otherwise.
-- Binds: $1 smallint log, $2 bigint position, $3 bigint writer. Index: one backward step in events_pkey.
SELECT WHERE coalesce((SELECT last.position = $2::bigint AND last.writer = $3::bigint FROM events AS last
                       WHERE last.log = $1::smallint ORDER BY last.log DESC, last.position DESC LIMIT 1),
                      $2 = 0)
