-- Events with one of some pairs of stream and id within a part of the log, without their payload.
--
-- Binds: $1 smallint log, $2 bigint[] streams, $3 uuid[] an id for each of them, $4 bigint after this position or
--        $5 timestamptz not older, $6 bigint up to this position.
-- Index: there is none on ids. Positions and times grow along a stream, so the revisions that count are found by two
--        bisections at once (each about log2 of the stream's length looks into events_stream_revision_key) and read.
--        A row carries all that is known of its stream: a join of rows would compare each with each.
WITH RECURSIVE part(stream, ids, low, high, end_low, end_high) AS (
    SELECT asked.stream, asked.ids, f.revision, l.revision + 1, f.revision, l.revision + 1
    FROM (SELECT a.stream, array_agg(a.id) AS ids
          FROM unnest($2::bigint[], $3::uuid[]) AS a(stream, id) GROUP BY a.stream) AS asked
    CROSS JOIN LATERAL (SELECT v.revision FROM events AS v WHERE v.log = $1 AND v.stream = asked.stream
                        ORDER BY v.log, v.stream, v.revision LIMIT 1) AS f
    CROSS JOIN LATERAL (SELECT v.revision FROM events AS v WHERE v.log = $1 AND v.stream = asked.stream
                        ORDER BY v.log DESC, v.stream DESC, v.revision DESC LIMIT 1) AS l
    UNION ALL
    -- Low and high close in on the first revision that is recent enough, end_low and end_high on the first one beyond the
    -- part. Each pair that is still apart moves in each step, even if damage has left gaps between revisions.
    SELECT p.stream, p.ids,
           CASE WHEN p.low >= p.high OR b.reached THEN p.low ELSE b.revision + 1 END,
           CASE WHEN p.low < p.high AND b.reached THEN (p.low + p.high) / 2 ELSE p.high END,
           CASE WHEN p.end_low >= p.end_high OR e.reached THEN p.end_low ELSE e.revision + 1 END,
           CASE WHEN p.end_low < p.end_high AND e.reached THEN (p.end_low + p.end_high) / 2 ELSE p.end_high END
    FROM part AS p
    LEFT JOIN LATERAL (
        SELECT v.revision, v.position > $4::bigint OR v.created >= $5::timestamptz AS reached
        FROM events AS v
        WHERE v.log = $1 AND v.stream = p.stream AND v.revision >= (p.low + p.high) / 2
        ORDER BY v.log, v.stream, v.revision LIMIT 1) AS b ON true
    LEFT JOIN LATERAL (
        SELECT v.revision, v.position > $6::bigint AS reached
        FROM events AS v
        WHERE v.log = $1 AND v.stream = p.stream AND v.revision >= (p.end_low + p.end_high) / 2
        ORDER BY v.log, v.stream, v.revision LIMIT 1) AS e ON true
    WHERE p.low < p.high OR p.end_low < p.end_high
)
SELECT found.*
FROM part AS p
CROSS JOIN LATERAL (
    SELECT v.position, v.writer, v.created, v.stream, v.revision, v.event_id, v.type
    FROM events AS v
    WHERE v.log = $1 AND v.stream = p.stream AND v.revision >= p.low AND v.revision < p.end_low
      AND v.event_id = ANY (p.ids)
    OFFSET 0) AS found
WHERE p.low >= p.high AND p.end_low >= p.end_high
ORDER BY found.position
