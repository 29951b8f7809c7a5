-- Sets what a session relies on. $1 text[] names, $2 text[] values.
SELECT set_config(s.name, s.value, false) FROM unnest($1::text[], $2::text[]) AS s(name, value)
