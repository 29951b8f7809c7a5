-- What is wrong with the entries of virtual streams, one text a row. $1 bigint rows at most.
-- Reads all entries, in the order of their key.
-- Repeats the statement of crates/sqlite, because each dialect has its own file.
WITH counted AS (
    SELECT e.stream, count(*) AS entries, min(e.revision) AS first, max(e.revision) AS last, max(e.position) AS position
    FROM virtual_entries AS e GROUP BY e.stream
), ordered AS (
    SELECT e.stream, e.revision, e.position,
           lag(e.position) OVER (PARTITION BY e.stream ORDER BY e.revision) AS before
    FROM virtual_entries AS e
)
SELECT found.text FROM (
    SELECT 'virtual stream ' || s.name || ' has ' || coalesce(c.entries, 0) || ' entries, revisions '
        || coalesce(c.first, -1) || ' to ' || coalesce(c.last, -1) || ', and its next revision is ' || s.next_revision AS text
    FROM virtual_streams AS s LEFT JOIN counted AS c ON c.stream = s.id
    WHERE coalesce(c.entries, 0) <> s.next_revision OR c.first <> 0 OR c.last <> s.next_revision - 1
    UNION ALL
    SELECT 'entries of the virtual stream with number ' || c.stream || ' name no stream'
    FROM counted AS c WHERE NOT EXISTS (SELECT 1 FROM virtual_streams AS s WHERE s.id = c.stream)
    UNION ALL
    SELECT 'the entry at revision ' || o.revision || ' of the virtual stream with number ' || o.stream
        || ' has position ' || o.position || ', the one before it ' || o.before
    FROM ordered AS o WHERE o.position <= o.before
    UNION ALL
    SELECT 'virtual stream number ' || c.stream || ' has an entry at position ' || c.position
        || ', but the log was looked at up to ' || i.position
    FROM counted AS c CROSS JOIN virtual_index AS i WHERE c.position > i.position
    UNION ALL
    SELECT 'the log was looked at up to position ' || i.position || ' for virtual streams, but it ends at ' || l.position
    FROM virtual_index AS i
    CROSS JOIN (SELECT coalesce(max(e.position), 0) AS position FROM events AS e WHERE e.log = 0) AS l
    WHERE i.position > l.position
) AS found
LIMIT $1
