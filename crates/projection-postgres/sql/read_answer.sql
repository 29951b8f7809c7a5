-- The answer to a command; null while there is none. $1 int8 number.
SELECT answer FROM gesta_projections_commands WHERE number = $1::int8
