-- Keys and indexes of the journal with tags as an array. The published schema uses the operator class of the extension
-- intarray; the built-in one answers the same question and needs no extension.
--
-- Binds: none. Locks: SHARE on journal. Rows: none.
ALTER TABLE journal ADD CONSTRAINT journal_pkey PRIMARY KEY (persistence_id, sequence_number);
CREATE INDEX journal_ordering_idx ON journal USING brin (ordering);
CREATE INDEX journal_tags_idx ON journal USING gin (tags);
