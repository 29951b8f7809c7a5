-- A commit that stores nothing: it returns once everything committed before it is as durable as an
-- acknowledged append, synchronous standbys included.
SELECT pg_logical_emit_message(true, 'gesta', ''::text)
