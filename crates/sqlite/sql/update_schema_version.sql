-- Records a migration. Binds: 1 schema version. Runs in the transaction of the migration. Rows: none.
UPDATE store SET schema_version = ?1 WHERE id = 1;
