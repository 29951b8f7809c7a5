-- Freezes all logs, or ends that. Binds: $1 boolean. Locks: all leases.
UPDATE leases SET frozen = $1
