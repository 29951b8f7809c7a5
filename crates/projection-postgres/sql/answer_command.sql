-- Sets the answer to a command. $1 int8 number, $2 text answer.
UPDATE gesta_projections_commands SET answer = $2::text WHERE number = $1::int8
