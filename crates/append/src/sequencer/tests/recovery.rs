//! A batch that does not commit.

use super::*;

/// Goal: an append in doubt that is then refused for another reason is not said to be unstored: the lost statement may
/// still commit. Once another row has taken its place it cannot.
#[test]
fn what_may_commit_late_is_unknown_however_it_is_refused() {
    let poison = || BatchOutcome::Refused(ErrorKind::Refused("poison".into()).into());
    for moves_on in [false, true] {
        let mut d = Driver::running(Config::default(), 1);
        let first = d.append("s", Any, 1);
        d.fail(lost());
        d.connect();
        if moves_on {
            d.append_by_other("t");
        }
        d.do_reads();
        d.fail(poison());
        let is_unknown = matches!(d.kind(first), ErrorKind::OutcomeUnknown(_));
        assert_eq!(is_unknown, !moves_on, "{}", d.kind(first));
    }
}

/// Empty batches pass, and the others do not: a disk that has stalled, a path that loses large packets. The empty batch
/// before the first one of each connection ended the fault, so readiness was green between any two losses, and each
/// loss was logged anew. Nor was there a pause between them.
#[test]
fn an_empty_batch_before_one_that_is_lost_ends_no_fault() {
    let mut d = Driver::running(Config::default(), 64);
    let lost_append = d.append("s", Any, 1);
    let (began, mut losses) = (d.now.moment, 0);
    while d.now.moment.since(began) < Duration::from_secs(20) {
        match d.sent.front() {
            Some(batch) if batch.rows.is_empty() => drop(d.commit()),
            Some(_) => {
                d.fail(lost());
                losses += 1;
            }
            None => d.pass(10 * MS),
        }
        if d.wants_connection {
            d.connect();
        }
        d.do_reads();
        let has_lasted = d.now.moment.since(began) > Duration::from_secs(2);
        let why = d.sequencer.why_not_ready(d.now);
        assert!(!has_lasted || why.is_some(), "after {losses} losses");
    }
    assert!((20..40).contains(&losses), "{losses} in 20 s");
    assert!(d.is_open(lost_append));
    d.pass(Duration::from_secs(1));
    d.settle();
    assert_eq!(d.position(lost_append), Position(3));
    assert_eq!(d.sequencer.why_not_ready(d.now), None);
}

/// A stream's last event was appended by another process and scavenged before this one caught up. Its revision was used
/// again.
#[test]
fn a_revision_that_was_scavenged_before_it_was_seen_is_not_used_again() {
    let mut d = Driver::running(Config::default(), 1);
    d.append_by_other("s");
    d.removed.push(d.end().position);
    d.append_by_other("t");
    let append = d.append("s", Any, 1);
    assert!(matches!(d.commit(), BatchOutcome::Missed));
    d.settle();
    assert_eq!(d.position(append), Position(5));
    assert_eq!(
        d.rows.last().map(|(row, _)| row.revision),
        Some(Revision(2))
    );
}

/// The same, for the owner of the stream: the event that it takes for the last one was, when both were cached. It
/// appended after it, and was told that it was up to date.
#[test]
fn an_owner_is_not_up_to_date_when_a_later_event_was_scavenged_before_it_was_seen() {
    for events in [1, 0] {
        let mut d = Driver::running(Config::default(), 1);
        let is_of_s = |row: &&(Row, WriterEpoch)| row.0.stream == name("s");
        let known = d.rows.iter().find(is_of_s).expect("there").0.id;
        d.append_by_other("s");
        d.removed.push(d.end().position);
        d.append_by_other("t");
        let owned = d.owned("s", known, events);
        assert!(matches!(d.commit(), BatchOutcome::Missed));
        d.settle();
        let refused = d.kind(owned);
        assert!(
            matches!(
                refused,
                ErrorKind::WrongExpectedRevision {
                    actual: Some(Revision(1)),
                    ..
                }
            ),
            "{refused}"
        );
        assert_eq!(d.rows.len(), 4, "nothing was stored");
    }
}

/// An append in doubt was decided again after everything known had been forgotten: it was stored twice if its lost
/// statement was stored in the part of the log that nobody had read.
#[test]
fn an_append_in_doubt_is_not_decided_again_when_everything_is_forgotten() {
    let mut d = Driver::running(Config::default(), 1);
    let lost_one = d.append("s", Any, 1);
    let batch = d.sent.front().cloned().expect("in flight");
    d.fail(lost());
    let later = d.append("t", Any, 1);
    d.execute(&batch);
    d.removed.push(d.end().position);
    d.append_by_other("t");
    d.settle();
    assert!(matches!(d.kind(lost_one), ErrorKind::OutcomeUnknown(_)));
    assert_eq!(d.position(later), Position(5));
    let times = d.rows.iter().filter(|(row, _)| row.stream == name("s"));
    assert_eq!(times.count(), 2, "the first one, and the lost one once");
}

/// Answers without rows that were lost with their batch waited for ever while the database was away, and so did a
/// shutdown.
#[test]
fn answers_without_rows_are_given_up_with_their_batch() {
    let mut d = Driver::running(Config::default(), 1);
    let confirmed = d.question("s");
    d.fail(lost());
    let refused = d.append("s", Exact(Revision(7)), 1);
    d.on(Input::Close);
    d.pass(Duration::from_secs(30) - MS);
    assert!(d.is_open(confirmed) && d.is_open(refused));
    d.pass(MS);
    for ticket in [confirmed, refused] {
        assert!(matches!(d.kind(ticket), ErrorKind::Unavailable(_)));
    }
    let stops = |output: &Output<u32>| matches!(output, Output::Stopped);
    assert!(d.others.iter().any(stops));
}

/// A connection died once more after a late commit had been found, and was used further: every later append was
/// unavailable though the database was well.
#[test]
fn a_connection_that_dies_after_a_late_commit_was_found_is_replaced() {
    let mut d = Driver::running(Config::default(), 1);
    let late = d.append("s", Any, 1);
    let batch = d.sent.front().cloned().expect("in flight");
    d.execute(&batch);
    d.fail(lost());
    d.connect();
    d.do_reads();
    assert_eq!(d.sizes(), [0], "what was found is answered with a commit");
    d.fail(lost());
    assert!(!d.wants_connection, "the second loss in sequence");
    d.pass(Duration::from_secs(1));
    d.connect();
    d.do_reads();
    assert!(d.is_open(late));
    d.settle();
    let next = d.append("s", Any, 1);
    d.settle();
    assert_eq!(
        (d.position(late), d.position(next)),
        (Position(3), Position(4))
    );
}

/// Goal: batches stay small until the last append among which the refused one was sought is stored; then they grow
/// again.
#[test]
fn batches_stay_small_until_all_suspects_are_stored() {
    let mut d = Driver::running(Config::default(), 1);
    let append = |d: &mut Driver, count| {
        (0..count).for_each(|_| {
            d.append("s", Any, 1);
        });
    };
    append(&mut d, 1 + 8);
    d.commit();
    assert_eq!(d.sizes(), [8]);
    d.fail(BatchOutcome::Refused(
        ErrorKind::Refused("poison".into()).into(),
    ));
    d.do_reads();
    for (size, more) in [(4, 0), (4, 6), (4, 5), (7, 0)] {
        assert_eq!(d.sizes(), [size]);
        append(&mut d, more);
        d.commit();
    }
    assert!(d.sent.is_empty());
}

/// Goal: a batch can only commit after those before it: one whose answer was lost is stored if the next has committed.
#[test]
fn a_commit_proves_the_batches_before_it() {
    let mut d = Driver::running(Config::default(), 4);
    let first = d.append("s", Any, 1);
    let second = d.append("s", Any, 1);
    let batch = d.sent.pop_front().expect("in flight");
    assert!(matches!(d.execute(&batch), BatchOutcome::Committed));
    d.on(Input::Outcome(lost()));
    d.commit();
    assert_eq!(
        (d.position(first), d.position(second)),
        (Position(3), Position(4))
    );
}

/// Goal: a batch without rows that failed has not been missed by the one after it.
#[test]
fn a_commit_after_an_empty_batch_that_failed_counts() {
    let mut d = Driver::running(Config::default(), 4);
    let refused = d.append("s", Exact(Revision(7)), 1);
    let stored = d.append("s", Any, 1);
    assert_eq!(d.sizes(), [0, 1]);
    d.fail(BatchOutcome::Failed(Error::unavailable("lock time-out")));
    d.commit();
    assert_eq!(d.position(stored), Position(3));
    assert!(d.is_open(refused));
    d.pass(MS * 10);
    d.settle();
    assert!(matches!(
        d.kind(refused),
        ErrorKind::WrongExpectedRevision { .. }
    ));
    assert!(!d.wants_connection);
    assert_eq!(d.stats().reconnects, 0);
}

/// Goal: a database that refuses the next row again and again although nothing is in its place makes everything known
/// doubtful; losing against another process as often does not.
#[test]
fn misses_without_news_make_everything_known_doubtful() {
    let mut d = Driver::running(Config::default(), 1);
    let loads = d.stats().loads;
    let first = d.append("s", Any, 1);
    for _ in 0..5 {
        d.append_by_other("s");
        assert!(matches!(d.commit(), BatchOutcome::Missed));
        d.do_reads();
        assert_eq!(d.sizes(), [1], "goes on at once");
    }
    d.commit();
    assert_eq!((d.position(first), d.stats().loads), (Position(8), loads));

    let second = d.append("s", Any, 1);
    d.fail(BatchOutcome::Missed);
    d.do_reads();
    d.fail(BatchOutcome::Missed);
    d.do_reads();
    assert!(d.sent.is_empty(), "waits");
    d.pass(MS * 10);
    assert!(matches!(d.reads[0].1.0, What::End));
    d.settle();
    assert_eq!(
        (d.position(second), d.stats().loads),
        (Position(9), loads + 1)
    );
}

/// Goal: another row at the place of the last one known shows that the database has lost commits: nothing known counts
/// any more.
#[test]
fn another_row_in_the_place_of_the_last_one_known_is_noticed() {
    let mut d = Driver::running(Config::default(), 1);
    let (row, _) = d.rows.pop().expect("stored");
    assert_eq!(row.stream, name("t"));
    d.append_by_other("s");
    let append = d.append("s", Any, 1);
    assert!(matches!(d.commit(), BatchOutcome::Missed));
    d.do_reads();
    assert!(matches!(d.commit(), BatchOutcome::Committed));
    assert_eq!(
        d.rows.last().map(|(row, _)| row.revision),
        Some(Revision(2))
    );
    assert_eq!(d.position(append), Position(3));
}

/// Goal: a log that has grown far is not read to its end: it is quicker to forget everything known.
#[test]
fn a_log_that_has_grown_far_is_not_followed() {
    for (grown, is_followed) in [(60_000, true), (60_001, false)] {
        let mut d = Driver::running(Config::default(), 1);
        d.append("s", Any, 1);
        let limit = d.end().position.0 + grown;
        d.append_by_other("s");
        d.commit();
        let (id, what) = d.next_read();
        let What::After(after, count) = what else {
            panic!("{what:?}");
        };
        let known = reference(&d.rows[1]);
        let next = reference(&d.rows[2]);
        let page = (after.0 + 2..).take(count - 1).map(|position| EventRef {
            position: Position(position),
            id: EventId::random(),
            ..next.clone()
        });
        let page = std::iter::once(known).chain(page).collect();
        d.on(Input::Read(id, Answer(Gave::After(Ok(page)))));
        let (id, what) = d.next_read();
        assert!(matches!(what, What::End), "{what:?}");
        let end = LogEnd {
            position: Position(limit),
            ..d.end()
        };
        d.on(Input::Read(id, Answer(Gave::End(Ok(end)))));
        let is_next = matches!(d.next_read().1, What::After(..));
        assert_eq!(is_next, is_followed);
    }
}

/// Goal: while the answers to batches after one that missed stay away, appends cannot succeed, and that is told.
#[test]
fn answers_that_stay_away_after_a_miss_are_told() {
    let mut d = Driver::running(Config::default(), 4);
    d.append("s", Any, 1);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [1, 1]);
    d.fail(BatchOutcome::Missed);
    assert_eq!(d.sequencer.why_not_ready(d.now), None);
    let later = d.later(Duration::from_secs(3));
    assert!(d.sequencer.why_not_ready(later).is_some());
}

/// Goal: pauses are short enough to give appends up in time.
#[test]
fn a_pause_is_short_beside_the_time_after_which_appends_are_given_up() {
    let config = Config {
        give_up_after: MS * 8,
        ..Config::default()
    };
    let mut d = Driver::new(config, 1);
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    assert_eq!(d.sequencer.wake_at(), Some(d.now.moment + MS * 2));
}

/// Goal: an append is woken for when it is to be given up, also while the answer of a connection is awaited.
#[test]
fn the_oldest_append_is_given_up_while_connecting() {
    let mut d = Driver::new(Config::default(), 1);
    assert_eq!(d.sequencer.wake_at(), None);
    let waits = d.append("s", Any, 1);
    let wake = d.now.moment + Duration::from_secs(30);
    assert_eq!(d.sequencer.wake_at(), Some(wake));
    d.pass(Duration::from_secs(30) - MS);
    assert!(d.is_open(waits));
    d.pass(MS);
    assert!(!d.is_open(waits));
}

/// A command was given up, and the retry that waited for it was to be decided again although it was as old: the
/// sequencer asked to be woken at a time that had passed, for ever. Found by the simulation.
#[test]
fn a_retry_is_given_up_with_the_command_that_it_waited_for() {
    let mut d = Driver::running(Config::default(), 1);
    let request = Append::to(name("s"), Any, some(1));
    let (first, retry) = (d.request(request.clone()), d.request(request));
    assert_eq!((d.stats().joined, d.sizes()), (1, vec![1]));
    d.fail(lost());
    d.pass(Duration::from_secs(30));
    assert!(matches!(d.kind(first), ErrorKind::OutcomeUnknown(_)));
    assert!(!d.is_open(retry));
    assert_eq!(d.sequencer.wake_at(), None);
}

/// Goal: when history changes, what is in flight is in doubt for good; what was not sent yet is stored in the new
/// history.
#[test]
fn a_change_of_history_leaves_what_is_in_flight_unknown() {
    let mut d = Driver::running(Config::default(), 1);
    let sent = d.append("s", Any, 1);
    let waits = d.append("t", Any, 1);
    let next = Incarnation::random();
    d.on(Input::HistoryChanged(next));
    assert!(d.sent.is_empty(), "disconnected");
    d.connect();
    assert!(matches!(d.reads[0].1.0, What::End), "all is forgotten");
    d.do_reads();
    assert!(matches!(d.kind(sent), ErrorKind::OutcomeUnknown(_)));
    let tells = |output: &Output<u32>| matches!(output, Output::ReadLogEnd);
    assert!(d.others.iter().any(tells));
    d.settle();
    let stored = d.answers[&waits].as_ref().expect("stored");
    let expected = gesta_core::Checkpoint::in_log(next, 1, LOG, Position(3));
    assert_eq!(stored.checkpoint, expected);
}

/// Goal: a change of history while connecting asks for no second connection, but nothing known counts on the one that
/// comes.
#[test]
fn a_change_of_history_while_connecting_is_remembered() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.fail(lost());
    assert!(std::mem::take(&mut d.wants_connection));
    d.on(Input::HistoryChanged(Incarnation::random()));
    assert!(!d.wants_connection, "one is being opened");
    d.wants_connection = true;
    d.connect();
    assert!(matches!(d.reads[0].1.0, What::End), "all is forgotten");

    d.fail_read();
    d.on(Input::Connected(Ok(Connected {
        epoch: WriterEpoch(99),
        is_gathered: false,
    })));
    assert!(d.reads.is_empty(), "nobody has asked for this one");
}

/// Goal: one that waits before it connects again waits as long after a change of history.
#[test]
fn a_change_of_history_does_not_end_a_pause() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.fail(lost());
    d.wants_connection = false;
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    d.on(Input::HistoryChanged(Incarnation::random()));
    assert!(!d.wants_connection);
    d.pass(d.sequencer.wake_at().expect("waits").since(d.now.moment));
    d.connect();
    assert!(matches!(d.reads[0].1.0, What::End), "all is forgotten");
}
