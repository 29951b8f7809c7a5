-- Recent events of a stream with one of some ids, without their payload.
--
-- Binds: $1 smallint log, $2 bigint stream, $3 uuid[] ids, $4 bigint behind this position or $5 timestamptz not older.
-- Index: there is none on ids. Positions and times grow along a stream, so the first recent revision is found by
--        bisection (about 2 × log2 of the stream's length looks into events_stream_revision_key), the rest is read.
WITH RECURSIVE recent(low, high) AS (
    SELECT (SELECT f.revision FROM events AS f WHERE f.log = $1 AND f.stream = $2
            ORDER BY f.log, f.stream, f.revision LIMIT 1),
           (SELECT l.revision + 1 FROM events AS l WHERE l.log = $1 AND l.stream = $2
            ORDER BY l.log DESC, l.stream DESC, l.revision DESC LIMIT 1)
    UNION ALL
    -- Either bound moves in each step, even if damage has left gaps between revisions.
    SELECT CASE WHEN probe.recent THEN r.low ELSE probe.revision + 1 END,
           CASE WHEN probe.recent THEN (r.low + r.high) / 2 ELSE r.high END
    FROM recent AS r
    CROSS JOIN LATERAL (
        SELECT e.revision, e.position > $4::bigint OR e.created >= $5::timestamptz AS recent
        FROM events AS e
        WHERE e.log = $1 AND e.stream = $2 AND e.revision >= (r.low + r.high) / 2
        ORDER BY e.log, e.stream, e.revision LIMIT 1) AS probe
    WHERE r.low < r.high
)
SELECT e.position, e.writer, e.created, e.stream, e.revision, e.event_id, e.type
FROM events AS e
WHERE e.log = $1 AND e.stream = $2
  AND e.revision >= (SELECT r.low FROM recent AS r WHERE r.low >= r.high LIMIT 1)
  AND e.event_id = ANY ($3::uuid[])
ORDER BY e.position
