-- Keys and indexes of the journal with a table of tags.
--
-- Binds: none. Locks: SHARE on journal and tags. Rows: none.
ALTER TABLE journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (ordering),
    ADD CONSTRAINT journal_uq UNIQUE (persistence_id, sequence_number);
CREATE INDEX journal_sequence_number_idx ON journal (sequence_number);
CREATE INDEX journal_created_idx ON journal (created);
ALTER TABLE tags ADD CONSTRAINT tags_pkey PRIMARY KEY (ordering_id, tag);
CREATE INDEX tags_persistence_id_sequence_nr_idx ON tags (persistence_id, sequence_nr);
CREATE INDEX tags_tag_idx ON tags (tag);
