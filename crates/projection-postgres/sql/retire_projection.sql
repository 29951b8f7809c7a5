-- Says that the rows of a version are gone, and ends every session. $1 text name, $2 int8 version.
UPDATE gesta_projections SET life = 'retired', state = 'paused', epoch = epoch + 1, owner = NULL
WHERE name = $1::text AND version = $2::int8
