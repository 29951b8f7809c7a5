-- Keys and indexes of the journal with tags as text.
--
-- Binds: none. Locks: SHARE on journal. Rows: none.
ALTER TABLE journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (ordering),
    ADD CONSTRAINT journal_uq UNIQUE (persistence_id, sequence_number);
CREATE INDEX journal_sequence_number_idx ON journal (sequence_number);
CREATE INDEX journal_created_idx ON journal (created);
