-- Gives the events of a store back to those who read and append.
DROP VIEW events, streams;
DROP FUNCTION refuse_moved(), moved_away();
ALTER TABLE moved_events RENAME TO events;
ALTER TABLE moved_streams RENAME TO streams
