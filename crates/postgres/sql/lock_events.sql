-- Waits until every append that is under way has ended. What begins later sees the end of the log as it is now.
LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE
