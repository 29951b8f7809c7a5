//! What goes into a batch, and when it is sent.

use super::*;

/// Goal: a batch takes as many events as it may, not one less, and the next append goes into the next batch.
#[test]
fn a_batch_is_filled_to_its_bounds() {
    let config = Config {
        batch_events_max: 4,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    for (stream, events) in [("s", 1), ("s", 2), ("t", 2), ("s", 1)] {
        d.append(stream, Any, events);
    }
    for size in [1, 4, 1] {
        assert_eq!(d.sizes(), [size]);
        d.commit();
    }
    assert!(d.sent.is_empty());
}

/// Goal: so many bytes fit as well, not one more.
#[test]
fn a_batch_is_filled_with_bytes_to_its_bound() {
    let cost = Command::append(0, Append::to(name("s"), Any, some(1)), Moment::START);
    let cost = cost.expect("valid").cost.bytes;
    for (bytes, sizes) in [(cost * 2, [1, 2, 1]), (cost * 2 - 1, [1, 1, 1])] {
        let config = Config {
            batch_bytes_max: bytes,
            ..Config::default()
        };
        let mut d = Driver::running(config, 1);
        (0..4).for_each(|_| {
            d.append("s", Any, 1);
        });
        for size in sizes {
            assert_eq!(d.sizes(), [size], "{bytes}");
            d.commit();
        }
    }
}

/// Goal: an append that is larger than a batch may be is stored, alone.
#[test]
fn an_append_larger_than_a_batch_travels_alone() {
    let config = Config {
        batch_events_max: 4,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    for events in [1, 1, 6, 1] {
        d.append("s", Any, events);
    }
    for size in [1, 1, 6, 1] {
        assert_eq!(d.sizes(), [size]);
        d.commit();
    }
}

/// Goal: near the database a batch waits until it is as large as the one under way, and two are under way at most.
#[test]
fn near_the_database_two_batches_are_under_way() {
    let mut d = Driver::running(Config::default(), 4);
    d.append("s", Any, 2);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [2], "smaller than the one under way");
    d.append("t", Any, 1);
    assert_eq!(d.sizes(), [2, 2]);
    d.append("s", Any, 5);
    assert_eq!(d.sizes(), [2, 2], "two are enough");
    d.commit();
    assert_eq!(d.sizes(), [2, 5]);
}

/// Goal: a batch into which the next append does not fit is sent although it is smaller than the one under way.
#[test]
fn a_batch_without_room_for_the_next_append_is_large_enough() {
    let config = Config {
        batch_events_max: 4,
        ..Config::default()
    };
    let mut d = Driver::running(config, 4);
    d.append("s", Any, 4);
    d.append("s", Any, 3);
    assert_eq!(d.sizes(), [4]);
    d.append("s", Any, 2);
    assert_eq!(d.sizes(), [4, 3]);
}

/// A database 30 ms away that works 12 ms on each batch.
fn far() -> Driver {
    let mut d = Driver::new(Config::default(), 8);
    d.connect();
    d.do_reads();
    assert_eq!(d.sizes(), [0], "a probe");
    d.pass(MS * 30);
    d.commit();
    assert!(d.sent.is_empty(), "one answer tells that it is far");
    d.append("s", Any, 2);
    d.do_reads();
    d.pass(MS * 30);
    d.commit();
    d.append("s", Any, 2);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [2, 1], "small ones go: no work is known");
    d.pass(MS * 30);
    d.commit();
    d.pass(MS * 12);
    d.commit();
    d
}

/// Goal: far away a small batch goes while the database would be idle; four are under way if each is as large as the
/// others.
#[test]
fn far_from_the_database_four_batches_are_under_way() {
    let mut d = far();
    d.append("s", Any, 3);
    d.append("s", Any, 3);
    d.append("s", Any, 1);
    assert_eq!(d.sizes(), [3, 3], "two keep the database busy");
    d.append("s", Any, 2);
    d.append("s", Any, 3);
    d.append("s", Any, 3);
    assert_eq!(d.sizes(), [3, 3, 3, 3], "four are enough");
}

/// Goal: where batches gather with those of other logs, a few small ones are under way; further ones grow meanwhile.
///
/// They were held back until they were as large as the smallest under way. With sixteen logs many callers so waited for
/// a second commit, and the common statements held two thirds of the events that one log's statements hold.
#[test]
fn small_batches_go_at_once_where_they_gather_with_those_of_other_logs() {
    let mut d = Driver::new(Config::default(), 64);
    d.is_gathered = true;
    d.connect();
    d.do_reads();
    d.append("s", Any, 1);
    d.settle();
    d.append("s", Any, 9);
    for _ in 0..5 {
        d.append("s", Any, 1);
    }
    assert_eq!(d.sizes(), [9, 1, 1, 1], "four are enough");
    d.commit();
    assert_eq!(d.sizes(), [1, 1, 1, 2], "what has formed goes next");
}

/// Goal: the way to the database is measured by empty batches only where several may be under way.
#[test]
fn the_way_is_not_measured_where_one_batch_is_under_way() {
    for (in_flight_max, sizes) in [(1, vec![]), (2, vec![0])] {
        let mut d = Driver::new(Config::default(), in_flight_max);
        d.connect();
        d.do_reads();
        assert_eq!(d.sizes(), sizes);
    }
}

/// Goal: after a fault an empty batch shows that commits work again; then nothing is sent for nothing.
#[test]
fn a_batch_without_rows_proves_that_a_fault_is_over() {
    let mut d = Driver::new(Config::default(), 1);
    d.wants_connection = false;
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    d.pass(MS * 10);
    d.connect();
    d.do_reads();
    let later = d.later(Duration::from_secs(2));
    assert!(d.sequencer.why_not_ready(later).is_some());
    assert_eq!(d.sizes(), [0]);
    d.commit();
    assert_eq!(d.sequencer.why_not_ready(later), None);
    assert!(d.sent.is_empty());
}

/// Goal: commands that cannot be decided yet are left where they are, unless their age is to be watched.
#[test]
fn commands_are_taken_while_fewer_wait_than_is_enough() {
    let config = Config {
        batch_events_max: 1,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    // One is in flight, one decided, one waits.
    (0..3).for_each(|_| {
        d.append("s", Any, 1);
    });
    assert!(!d.sequencer.takes_commands(1));
    assert!(d.sequencer.takes_commands(2));
    d.fail(lost());
    assert!(d.sequencer.takes_commands(0));
}

/// Goal: a claim that fails on what is still being committed is compared with what is stored only after that, and one
/// that fails on what is committed at once.
#[test]
fn open_commits_are_awaited_before_events_are_compared() {
    let mut d = Driver::running(Config::default(), 1);
    let early = d.append("t", Exact(Revision(0)), 1);
    d.settle();
    assert_eq!(d.position(early), Position(3));
    let late = d.append("t", Exact(Revision(0)), 1);
    assert!(d.sent.is_empty());
    let (id, what) = d.next_read();
    assert!(matches!(what, What::LookUp(..)), "{what:?}");
    let nothing = || Answer(Gave::LookedUp(Ok(vec![Found::Nothing])));
    d.on(Input::Read(id, nothing()));
    assert!(
        d.is_open(late),
        "the refusal rests on nothing else being stored"
    );
    d.settle();
    assert!(matches!(
        d.kind(late),
        ErrorKind::WrongExpectedRevision { .. }
    ));

    d.append("s", Any, 1);
    let late = d.append("s", Exact(Revision(0)), 1);
    assert!(
        d.reads.is_empty(),
        "the event at its place is not stored yet"
    );
    d.commit();
    let (id, what) = d.next_read();
    assert!(matches!(what, What::LookUp(..)), "{what:?}");
    d.on(Input::Read(id, nothing()));
    d.settle();
    assert!(matches!(
        d.kind(late),
        ErrorKind::WrongExpectedRevision { .. }
    ));
}

/// What happened: appends that waited for open commits were decided again in reverse order, and appends to the same
/// stream that had come after them were decided before. Now they wait in their order, and hold what comes after them.
/// So a stream that is appended to without a pause does not keep a comparison waiting either.
#[test]
fn appends_that_wait_for_open_commits_keep_their_order_and_hold_later_ones() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    let compared = [0, 0].map(|last| d.append("s", Exact(Revision(last)), 1));
    let later = d.append("s", Any, 1);
    let elsewhere = d.append("t", Any, 1);
    d.commit();
    assert_eq!(d.sizes(), [1], "nothing of the stream but what is compared");
    let mut asked = Vec::new();
    while let Some((id, job)) = d.reads.pop_front() {
        let What::LookUp(questions, _) = &job.0 else {
            panic!("{job:?}");
        };
        asked.extend(questions.iter().flatten().map(|one| one.ids[0]));
        let answer = d.read(&job);
        d.on(Input::Read(id, answer));
    }
    assert_eq!(asked.len(), 2);
    d.settle();
    for refused in compared {
        let kind = d.kind(refused);
        assert!(matches!(kind, ErrorKind::WrongExpectedRevision { .. }));
    }
    assert!(d.position(elsewhere) < d.position(later));
    let refusals = d.order.iter().filter(|one| compared.contains(one));
    assert_eq!(refusals.copied().collect::<Vec<_>>(), compared);
}

/// Goal: what was open at first is awaited again when it was undone.
#[test]
fn commits_that_were_undone_are_awaited_again() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.append("s", Exact(Revision(0)), 1);
    d.append_by_other("t");
    assert!(matches!(d.commit(), BatchOutcome::Missed));
    let (id, job) = d.reads.pop_front().expect("looks what was appended");
    let answer = d.read(&job);
    d.on(Input::Read(id, answer));
    assert_eq!(d.sizes(), [1]);
    assert!(
        d.reads.is_empty(),
        "the event at its place is not stored yet"
    );
}

/// One append by a clock that was ten years ahead froze the time of all later events.
#[test]
fn a_clock_that_leaps_is_refused_until_it_is_right_again() {
    const YEAR: i64 = 366 * 86_400_000_000;
    let mut d = Driver::running(Config::default(), 4);
    d.now.wall.0 += 10 * YEAR;
    let refused = d.append("s", Any, 1);
    assert!(matches!(d.kind(refused), ErrorKind::Unavailable(why) if why.contains("append.clock")));
    assert!(d.sequencer.why_not_ready(d.now).is_some());
    // The database's clock has leapt as well, or the store was idle for so long.
    d.now.database = Some(d.now.wall);
    assert_eq!(d.sequencer.why_not_ready(d.now), None);
    d.now.database = None;
    d.now.wall.0 -= 10 * YEAR;
    assert_eq!(d.sequencer.why_not_ready(d.now), None);
    let stored = d.append("s", Any, 1);
    d.settle();
    d.position(stored);
    // The newest event is ahead of the clock: nothing is refused.
    d.now.wall.0 -= 10 * YEAR;
    let stored = d.append("s", Any, 1);
    d.settle();
    d.position(stored);
    let times: Vec<_> = d.rows.iter().map(|(row, _)| row.created).collect();
    assert!(times.is_sorted(), "{times:?}");
}
