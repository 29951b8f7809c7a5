-- All columns of the events of a log between two positions. $1 smallint log, $2 bigint above this, $3 bigint up to this.
SELECT position, stream, revision, type, created, writer, checksum, event_id, content_type, tags,
       coalesce(packed, data), metadata
FROM events WHERE log = $1 AND position > $2 AND position <= $3 ORDER BY position
