-- Answers a command. Binds: 1 number, 2 answer.
UPDATE gesta_projections_commands SET answer = ?2 WHERE number = ?1
