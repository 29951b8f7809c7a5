-- Adds to the schema version, so that no program serves the store, or takes that back. $1 integer. One row.
UPDATE store SET schema_version = schema_version + $1
