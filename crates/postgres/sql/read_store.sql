-- The one row about the store.
SELECT schema_version, logs, incarnation FROM store
