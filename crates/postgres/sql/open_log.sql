-- Removes the row that closes a log. As the retention role. $1 smallint log. One row; none if the log is open.
DELETE FROM events WHERE log = $1 AND position = 9223372036854775807
