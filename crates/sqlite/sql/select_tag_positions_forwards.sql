-- Positions that carry a tag. Binds: 1 tag, 2 above this position, 3 up to this position. Index: primary key of tags.
-- Rows: as many as the reader steps through, by position.
SELECT position FROM tags WHERE tag = ?1 AND position > ?2 AND position <= ?3 ORDER BY position;
