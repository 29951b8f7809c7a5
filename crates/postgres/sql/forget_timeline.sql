-- Forgets where the store was seen last, after a new incarnation was begun: the next process notes where it finds it.
UPDATE store SET cluster = NULL, timeline = NULL, synchronous = NULL
