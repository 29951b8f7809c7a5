-- Version 2: the filter, and what an index is made of, both as JSON, and which attempt was announced last; `attempts` is its number, 0 for none, and `attempt_events` its size.
ALTER TABLE gesta_projections ADD COLUMN filter TEXT;
ALTER TABLE gesta_projections ADD COLUMN definition TEXT;
ALTER TABLE gesta_projections ADD COLUMN attempt_log INTEGER;
ALTER TABLE gesta_projections ADD COLUMN attempt_position INTEGER;
ALTER TABLE gesta_projections ADD COLUMN attempt_is_replay INTEGER NOT NULL DEFAULT 0;
UPDATE gesta_projections_schema SET version = 2;
