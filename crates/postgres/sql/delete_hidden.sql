-- Removes hidden events of a stream with their tags, oldest first, and remembers how far.
-- Binds: $1 to $5 as in count_hidden.sql, $6 bigint rows at most. Needs the retention role.
-- Rows:  one: what was removed. Locks: the rows removed. Index: events_stream_revision_key.
WITH doomed AS (
    SELECT e.position FROM events AS e
    WHERE e.log = $1 AND e.stream = $2 AND e.position < $5 AND (e.revision < $3 OR e.created < $4::timestamptz)
    ORDER BY e.log, e.stream, e.revision LIMIT $6
), removed AS (
    DELETE FROM events AS e USING doomed WHERE e.log = $1 AND e.position = doomed.position
    RETURNING e.position, e.revision, octet_length(coalesce(e.packed, e.data)) + octet_length(e.metadata) AS bytes, e.tags
), untagged AS (
    DELETE FROM tags AS t USING (SELECT r.position, unnest(r.tags) AS tag FROM removed AS r) AS gone
    WHERE t.log = $1 AND t.tag = gone.tag AND t.position = gone.position
), total AS (
    SELECT count(*) AS events, coalesce(sum(bytes), 0)::bigint AS payload_bytes,
           max(revision) AS last_revision, max(position) AS last_position
    FROM removed
), remembered AS (
    INSERT INTO scavenges AS s (log, stream, last_revision, last_position, events, payload_bytes)
    SELECT $1, $2, last_revision, last_position, events, payload_bytes FROM total WHERE events > 0
    ON CONFLICT (log, stream) DO UPDATE
    SET last_revision = greatest(s.last_revision, excluded.last_revision),
        last_position = greatest(s.last_position, excluded.last_position),
        events = s.events + excluded.events,
        payload_bytes = s.payload_bytes + excluded.payload_bytes,
        scavenged = excluded.scavenged
)
SELECT events, payload_bytes FROM total
