-- Removes one entry of the tag index. Binds: 1 tag, 2 position. Write lock and retention mark held. Rows: none.
DELETE FROM tags WHERE tag = ?1 AND position = ?2;
