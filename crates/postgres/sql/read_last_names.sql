-- Up to where a log has names. $1 smallint log. One row: the greatest id of its streams and of its types; 0 if it has
-- none. Index: one backward step in streams_pkey and in types_pkey.
SELECT coalesce((SELECT max(id) FROM streams WHERE log = $1), 0) AS streams,
       coalesce((SELECT max(id) FROM types WHERE log = $1), 0) AS types
