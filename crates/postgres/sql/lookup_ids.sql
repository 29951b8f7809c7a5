-- Events with one of some pairs of stream and id within a part of the log, without their payload.
--
-- Binds: $1 smallint log, $2 bigint[] streams, $3 uuid[] an id for each of them, $4 bigint behind this position or
--        $5 timestamptz not older, $6 bigint up to this position.
-- Index: there is none on ids. Positions and times grow along a stream, so the revisions that count are found by two
--        bisections (each about 2 × log2 of the stream's length looks into events_stream_revision_key) and read.
WITH RECURSIVE asked AS (
    SELECT a.stream, array_agg(a.id) AS ids FROM unnest($2::bigint[], $3::uuid[]) AS a(stream, id) GROUP BY a.stream
),
-- For each stream the first revision that is recent enough, and the first one that is beyond the part.
bound(stream, is_end, low, high) AS (
    SELECT a.stream, side.is_end,
           (SELECT f.revision FROM events AS f WHERE f.log = $1 AND f.stream = a.stream
            ORDER BY f.log, f.stream, f.revision LIMIT 1),
           (SELECT l.revision + 1 FROM events AS l WHERE l.log = $1 AND l.stream = a.stream
            ORDER BY l.log DESC, l.stream DESC, l.revision DESC LIMIT 1)
    FROM asked AS a CROSS JOIN (VALUES (false), (true)) AS side(is_end)
    UNION ALL
    -- Either side moves in each step, even if damage has left gaps between revisions.
    SELECT b.stream, b.is_end,
           CASE WHEN probe.reached THEN b.low ELSE probe.revision + 1 END,
           CASE WHEN probe.reached THEN (b.low + b.high) / 2 ELSE b.high END
    FROM bound AS b
    CROSS JOIN LATERAL (
        SELECT e.revision,
               CASE WHEN b.is_end THEN e.position > $6::bigint
                    ELSE e.position > $4::bigint OR e.created >= $5::timestamptz END AS reached
        FROM events AS e
        WHERE e.log = $1 AND e.stream = b.stream AND e.revision >= (b.low + b.high) / 2
        ORDER BY e.log, e.stream, e.revision LIMIT 1) AS probe
    WHERE b.low < b.high
)
SELECT found.*
FROM asked AS a
JOIN bound AS b ON b.stream = a.stream AND NOT b.is_end AND b.low >= b.high
JOIN bound AS e ON e.stream = a.stream AND e.is_end AND e.low >= e.high
CROSS JOIN LATERAL (
    SELECT v.position, v.writer, v.created, v.stream, v.revision, v.event_id, v.type
    FROM events AS v
    WHERE v.log = $1 AND v.stream = a.stream AND v.revision >= b.low AND v.revision < e.low
      AND v.event_id = ANY (a.ids)
    OFFSET 0) AS found
ORDER BY found.position
