-- Waits until everything that reads or appends has ended, and keeps others out until commit.
LOCK TABLE events IN ACCESS EXCLUSIVE MODE
