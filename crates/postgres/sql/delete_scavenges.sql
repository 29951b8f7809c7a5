-- Forgets how far streams of a log were scavenged, before that is copied from elsewhere. $1 smallint log.
DELETE FROM scavenges WHERE log = $1
