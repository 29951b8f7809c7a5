-- Where processes of the lab meet. Created by whoever comes first; may fail when two come at the same moment.
--
-- Binds: none. Locks: catalogue rows. Rows: none.
CREATE SCHEMA IF NOT EXISTS gesta_lab_meeting;
CREATE TABLE IF NOT EXISTS gesta_lab_meeting.members (
    meeting text NOT NULL,
    member  integer NOT NULL,
    PRIMARY KEY (meeting, member)
);
CREATE TABLE IF NOT EXISTS gesta_lab_meeting.posts (
    meeting   text NOT NULL,
    gathering integer NOT NULL,
    member    integer NOT NULL,
    body      text NOT NULL,
    PRIMARY KEY (meeting, gathering, member)
);
