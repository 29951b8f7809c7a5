-- Holds the row that closes a log as it is until commit, so that nothing is appended and nobody opens the log
-- meanwhile. $1 smallint log. One row; none if the log is open.
SELECT true FROM events WHERE log = $1 AND position = 9223372036854775807 FOR SHARE
