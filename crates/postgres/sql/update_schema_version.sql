-- Records that a migration was done. $1 integer schema version. One row, locked until commit.
UPDATE store SET schema_version = $1
