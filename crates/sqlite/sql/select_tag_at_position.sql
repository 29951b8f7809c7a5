-- Whether a position carries a tag. Binds: 1 tag, 2 position. Index: primary key of tags. Rows: at most one.
SELECT 1 FROM tags WHERE tag = ?1 AND position = ?2;
