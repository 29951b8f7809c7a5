-- Messages to one channel in one round trip. $1 text channel, $2 text[] payloads.
SELECT pg_notify($1, m.payload) FROM unnest($2::text[]) AS m(payload)
