-- The tag index for the audit. Binds: 1 after this tag, 2 and position; from the start: empty text and -1.
-- Index: primary key. Rows: as many as the reader steps through, by tag and position.
SELECT tag, position FROM tags WHERE (tag, position) > (?1, ?2) ORDER BY tag, position;
