//! What a lane keeps, asks for, and forgets.

use super::*;
use crate::testing::{batch, event, tagged};

fn lane(events_max: usize) -> Arc<Lane> {
    let pulse = Arc::new(watch::Sender::new(0));
    Arc::new(Lane::new(LogId(0), events_max, usize::MAX, pulse))
}

fn read(after: u64, to: Option<u64>) -> Option<Task> {
    Some(Task::Read {
        after: Position(after),
        to: to.map(Position),
    })
}

fn next(lane: &Lane) -> Option<Task> {
    lane.next_work().map(|work| work.task)
}

/// The row of the tests at this position.
fn row(position: u64) -> LogEnd {
    LogEnd {
        position: Position(position),
        writer: WriterEpoch(7),
        created: Timestamp(1),
    }
}

fn filled(lane: &Lane, positions: std::ops::RangeInclusive<u64>, to: Option<u64>) {
    let after = Position(positions.start() - 1);
    let events = positions.map(|position| (*event(position, "a")).clone());
    let events: Vec<_> = events.collect();
    let rows = Rows {
        last_writer: Some(WriterEpoch(7)),
        events,
        complete: true,
    };
    let generation = lane.lock().generation;
    lane.filled(generation, after, to.map(Position), rows);
}

fn nothing_there(lane: &Lane, after: u64) {
    let rows = Rows {
        events: Vec::new(),
        complete: true,
        last_writer: None,
    };
    let generation = lane.lock().generation;
    lane.filled(generation, Position(after), None, rows);
}

fn awaken(lane: &Lane, end: u64) -> u64 {
    lane.awaken(0, &row(end)).expect("of this history")
}

/// Goal: a commit between the look at the end and the awakening that follows it is not missed.
#[test]
fn a_commit_while_awakening_is_looked_for() {
    let lane = lane(100);
    let _interest = lane.interest();
    lane.committed(0, &batch(1..=2));
    awaken(&lane, 0);
    assert_eq!(next(&lane), read(0, None));
    filled(&lane, 1..=2, None);
    assert_eq!((next(&lane), lane.end()), (None, Position(2)));
}

/// What happened: a doubt of the time in which nobody was subscribed was remembered, and the first subscriber, who had
/// just read the ends of all logs, let each be read again. One in whose time the doubt comes needs that.
#[test]
fn a_doubt_from_before_a_subscriber_came_is_forgotten() {
    let lane = lane(100);
    lane.doubt();
    let _interest = lane.interest();
    awaken(&lane, 0);
    assert_eq!(next(&lane), None);
    let lane = self::lane(100);
    let _interest = lane.interest();
    lane.doubt();
    awaken(&lane, 0);
    assert_eq!(next(&lane), Some(Task::Check { end: Position(0) }));
}

#[test]
fn asleep_it_keeps_and_asks_nothing() {
    let lane = lane(100);
    lane.committed(0, &batch(1..=2));
    lane.heard(Position(9));
    lane.doubt();
    assert_eq!((next(&lane), lane.end()), (None, Position(0)));
    let interest = lane.interest();
    awaken(&lane, 9);
    lane.committed(0, &batch(10..=10));
    assert_eq!((next(&lane), lane.end()), (None, Position(10)));
    drop(interest);
    lane.committed(0, &batch(11..=11));
    assert_eq!((next(&lane), lane.end()), (None, Position(10)));
}

#[test]
fn what_comes_after_a_gap_waits_until_it_is_filled() {
    let lane = lane(100);
    let _interest = lane.interest();
    awaken(&lane, 1);
    lane.committed(0, &batch(4..=5));
    lane.committed(0, &batch(6..=6));
    assert_eq!(next(&lane), read(1, Some(3)));
    assert_eq!(lane.end(), Position(1));
    filled(&lane, 2..=2, None);
    assert_eq!(next(&lane), read(2, Some(3)));
    filled(&lane, 3..=3, Some(3));
    assert_eq!((next(&lane), lane.end()), (None, Position(6)));
}

/// Goal: a subscriber that comes while there is a gap learns of what comes after everything that is pending.
#[test]
fn who_comes_during_a_gap_is_not_left_at_what_is_pending() {
    let lane = lane(100);
    let _first = lane.interest();
    awaken(&lane, 1);
    lane.committed(0, &batch(3..=4));
    let _second = lane.interest();
    awaken(&lane, 6);
    assert_eq!(next(&lane), read(1, Some(2)));
    filled(&lane, 2..=2, Some(2));
    assert_eq!((next(&lane), lane.end()), (read(4, None), Position(4)));
}

#[test]
fn too_much_after_a_gap_is_read_instead() {
    let lane = lane(3);
    let _interest = lane.interest();
    awaken(&lane, 0);
    lane.committed(0, &batch(2..=3));
    lane.committed(0, &batch(4..=5));
    assert_eq!(next(&lane), read(0, None));
}

/// Tags were free of charge once: what waited after a gap held 8 KiB more for each event than its bound knew.
#[test]
fn tags_count_against_the_bytes_that_wait_after_a_gap() {
    let pulse = Arc::new(watch::Sender::new(0));
    let lane = Arc::new(Lane::new(LogId(0), 100, 20 * 1024, pulse));
    let _interest = lane.interest();
    awaken(&lane, 0);
    let mut large = batch(3..=5);
    for row in &mut large.rows {
        row.tags = tagged(1).tags.clone();
    }
    lane.committed(0, &batch(2..=2));
    assert_eq!(next(&lane), read(0, Some(1)));
    lane.committed(0, &large);
    filled(&lane, 1..=1, None);
    assert_eq!(next(&lane), read(1, None));
}

/// Goal: a message is only a hint. One that is wrong costs a look and moves nothing.
#[test]
fn a_wrong_message_is_not_believed() {
    let lane = lane(100);
    let _interest = lane.interest();
    awaken(&lane, 3);
    lane.heard(Position(2));
    assert_eq!(next(&lane), None);
    lane.heard(Position::MAX);
    assert_eq!(next(&lane), read(3, None));
    nothing_there(&lane, 3);
    assert_eq!((next(&lane), lane.end()), (None, Position(3)));
}

/// Goal: what a read brings is not read again because of messages that came while the read was under way. One that
/// names more than it has brought is followed.
#[test]
fn a_message_about_what_was_read_meanwhile_asks_for_nothing() {
    let lane = lane(100);
    let _interest = lane.interest();
    awaken(&lane, 3);
    lane.heard(Position(4));
    assert_eq!(next(&lane), read(3, None));
    lane.heard(Position(5));
    lane.heard(Position(6));
    filled(&lane, 4..=6, None);
    assert_eq!((next(&lane), lane.end()), (None, Position(6)));
    lane.heard(Position(7));
    assert_eq!(next(&lane), read(6, None));
    lane.heard(Position(8));
    filled(&lane, 7..=7, None);
    assert_eq!(next(&lane), read(7, None));
    // A page that was full says nothing about what follows it, whatever was heard of.
    let work = Work {
        generation: lane.lock().generation,
        task: Task::Read {
            after: Position(7),
            to: None,
        },
    };
    filled(&lane, 8..=9, None);
    lane.unfinished(&work);
    assert_eq!(next(&lane), read(9, None));
}

/// What happened: a position that does not exist, which anybody can name who may connect to the database, was
/// remembered, so that from then on each message during a read asked for one more. Goal: the read that it causes ends
/// it.
#[test]
fn a_position_that_is_not_there_is_forgotten() {
    let lane = lane(100);
    let interest = lane.interest();
    awaken(&lane, 3);
    lane.heard(Position::MAX);
    assert_eq!(next(&lane), read(3, None));
    nothing_there(&lane, 3);
    let reads_once = |after: u64| {
        lane.heard(Position(after + 1));
        assert_eq!(next(&lane), read(after, None));
        lane.heard(Position(after + 2));
        filled(&lane, after + 1..=after + 2, None);
        assert_eq!(next(&lane), None);
    };
    reads_once(3);
    // It is named while nobody is subscribed, and costs who comes then one read.
    drop(interest);
    lane.heard(Position::MAX);
    let _interest = lane.interest();
    awaken(&lane, 5);
    assert_eq!(next(&lane), read(5, None));
    nothing_there(&lane, 5);
    reads_once(5);
}

/// What the tail reader finds at the end of the log, asked for when the ring ended at `asked_at`.
fn checked(lane: &Lane, asked_at: u64, end: &LogEnd) {
    let generation = lane.lock().generation;
    lane.checked(generation, Position(asked_at), end);
}

fn is_of(lane: &Lane, generation: u64) -> bool {
    lane.check(generation).is_ok()
}

#[test]
fn a_log_that_moved_back_begins_a_new_generation() {
    let lane = lane(100);
    let _interest = lane.interest();
    let old = awaken(&lane, 0);
    lane.committed(0, &batch(1..=5));
    checked(&lane, 5, &row(5));
    assert!(is_of(&lane, old));
    // Other events at positions that were seen already.
    lane.committed(0, &batch(4..=4));
    assert!(!is_of(&lane, old));
    let new = awaken(&lane, 4);
    assert_eq!(lane.end(), Position(4));
    checked(&lane, 4, &row(2));
    assert!(!is_of(&lane, new));
}

/// Goal: positions alone prove nothing. A log that lost its end and was filled up again by others has the same
/// positions; subscribers were served from it without an error, and skipped what the others had stored.
#[test]
fn another_row_at_the_end_begins_a_new_generation() {
    let lane = lane(100);
    let _interest = lane.interest();
    let old = awaken(&lane, 0);
    filled(&lane, 1..=5, None);
    let other = LogEnd {
        writer: WriterEpoch(8),
        ..row(5)
    };
    checked(&lane, 5, &row(5));
    assert!(is_of(&lane, old));
    checked(&lane, 5, &other);
    assert!(!is_of(&lane, old));
}

#[test]
fn a_segment_that_does_not_follow_begins_a_new_generation() {
    let lane = lane(100);
    let _interest = lane.interest();
    let old = awaken(&lane, 5);
    lane.committed(0, &batch(6..=7));
    assert!(is_of(&lane, old));
    let mut other = batch(8..=8);
    other.after.created = Timestamp(2);
    lane.committed(0, &other);
    assert!(!is_of(&lane, old));
    // Without a place nothing comes in; the end of the log gives it one.
    lane.committed(0, &batch(9..=9));
    assert_eq!(next(&lane), Some(Task::Check { end: Position(0) }));
    checked(&lane, 0, &row(8));
    assert_eq!((lane.end(), next(&lane)), (Position(8), read(8, None)));
}

/// Goal: what waits after a gap comes in only if the row before it is the one that it followed.
#[test]
fn a_gap_whose_end_is_gone_is_read_and_not_believed() {
    let lane = lane(100);
    let _interest = lane.interest();
    let generation = awaken(&lane, 1);
    lane.committed(0, &batch(6..=7));
    assert_eq!(next(&lane), read(1, Some(5)));
    filled(&lane, 2..=3, Some(5));
    assert_eq!(lane.end(), Position(3));
    assert_eq!(next(&lane), Some(Task::Check { end: Position(3) }));
    let mut other = batch(6..=7);
    other.after.writer = WriterEpoch(8);
    lane.committed(0, &other);
    filled(&lane, 4..=5, Some(5));
    lane.next_work();
    assert!(!is_of(&lane, generation), "another writer at position 5");
}

#[test]
fn another_history_forgets_everything_and_old_work_is_dropped() {
    let lane = lane(100);
    let _interest = lane.interest();
    let old = awaken(&lane, 0);
    lane.committed(0, &batch(1..=2));
    lane.heard(Position(9));
    let work = lane.next_work().expect("more was heard of");
    lane.keep_up(1);
    assert!(!is_of(&lane, old));
    let rows = Rows {
        events: vec![(*event(3, "a")).clone()],
        complete: true,
        last_writer: None,
    };
    lane.filled(work.generation, Position(2), None, rows);
    assert_eq!(lane.end(), Position(0));
    assert_eq!(lane.awaken(0, &row(2)), None, "looked up in the old one");
    assert!(lane.awaken(1, &row(2)).is_some());
    assert_eq!(next(&lane), None, "what was heard of is forgotten");
    let now = lane.lock().generation;
    lane.committed(0, &batch(3..=3));
    assert!(is_of(&lane, now), "a late call ends nothing");
}
