-- Makes the leases of a new store, whose row in `store` is there. No binds. One row for each log.
INSERT INTO leases (log) SELECT generate_series(0, logs - 1) FROM store ON CONFLICT (log) DO NOTHING
