-- Adds the check that no event is stored in a log that a new store does not have. No binds.
SELECT limit_logs(logs) FROM store
