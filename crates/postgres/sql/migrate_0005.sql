-- Schema version 5: the version of the cluster, and drains that outlast a restart. Adds columns only, so programs of
-- version 4 that have the store open are not disturbed by it. Explained in docs/internals/schema-postgres.md and
-- docs/internals/leases.md.

-- The version of the protocol between nodes whose forms they may use. `gesta cluster finalize` raises it.
ALTER TABLE clusters ADD COLUMN version integer NOT NULL DEFAULT 1;
ALTER TABLE clusters ADD CONSTRAINT clusters_version_check CHECK (version > 0);

-- The node joins as draining, until that is taken back.
ALTER TABLE nodes ADD COLUMN held boolean NOT NULL DEFAULT false;
