//! What has to be looked up before a command can be decided.

use gesta_core::{Checkpoint, Filter, Query, Tag, Tags};

use super::super::job::MatchSearch;
use super::super::reads::{Purpose, Reads};
use super::*;

/// The condition that no event carries all of these tags after a position.
fn provided(d: &Driver, append: Append, tags: &[&str], after: Position) -> Append {
    let tags = tags.iter().map(|tag| Tag::new(*tag).expect("valid"));
    let filter = Filter::query(Query {
        tags: tags.collect(),
        ..Query::default()
    });
    let incarnation = d.sequencer.setting.incarnation;
    append.provided_no_match(filter, Some(Checkpoint::in_log(incarnation, 1, LOG, after)))
}

fn tagged(stream: &str, tag: &str) -> Append {
    let tags = Tags::new(vec![Tag::new(tag).expect("valid")]).expect("valid");
    let events = some(1).into_iter().map(|event| EventData {
        tags: tags.clone(),
        ..event
    });
    Append::to(name(stream), Any, events.collect())
}

/// Goal: a stream whose stored state cannot be read fails its own appends and no others that were looked up with it.
#[test]
fn a_stream_that_cannot_be_read_fails_alone() {
    let mut d = Driver::running(Config::default(), 1);
    let [bad, good] = ["bad", "good"].map(|stream| d.bring(Append::to(name(stream), Any, some(1))));
    d.work();
    let (id, what) = d.next_read();
    let What::Load(request) = what else {
        panic!("{what:?}");
    };
    assert_eq!(request.streams, [name("bad"), name("good")]);
    let head = StreamHead {
        row: RowId(1),
        last: Revision(0),
        position: Position(1),
        id: None,
    };
    let meta = LoadedMeta {
        head,
        data: Bytes::from_static(b"no document"),
        metadata: Bytes::new(),
    };
    let unreadable = LoadedStream {
        head: None,
        meta: Some(meta),
    };
    let loaded = Loaded {
        end: d.end(),
        streams: vec![unreadable, LoadedStream::default()],
        types: vec![None; request.types.len()],
    };
    d.on(Input::Read(id, Answer(Gave::Loaded(Ok(loaded)))));
    assert!(!d.is_open(bad));
    assert_eq!(d.sizes(), [1]);
    d.commit();
    assert_eq!(d.position(good), Position(3));
}

/// Goal: while streams cannot be looked up it is tried again after ever longer pauses, and appends that wait for that
/// are given up in time.
#[test]
fn looking_up_is_tried_again_until_the_append_is_given_up() {
    let mut d = Driver::running(Config::default(), 1);
    let began = d.now.moment;
    let waits = d.append("new", Any, 1);
    let mut pauses = Vec::new();
    while d.is_open(waits) {
        d.fail_read();
        assert!(d.reads.is_empty(), "not at once");
        let wake = d.sequencer.wake_at().expect("is tried again");
        pauses.push(wake.since(d.now.moment));
        d.pass(wake.since(d.now.moment));
        assert!(d.now.moment.since(began) < Duration::from_secs(32));
    }
    assert_eq!(pauses[..3], [MS * 10, MS * 20, MS * 40]);
    assert!(d.now.moment.since(began) >= Duration::from_secs(30));
    assert!(matches!(d.kind(waits), ErrorKind::Unavailable(_)));
    assert!(d.reads.is_empty());
}

/// Goal: a type that is not known is looked up together with the stream, also while other streams are being looked up.
#[test]
fn a_type_is_looked_up_with_its_stream() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("first", Any, 1);
    let event = EventData::json(EventType::new("unknown").expect("valid"), "{}").without_id();
    d.request(Append::to(name("second"), Any, vec![event]));
    let asked = d.reads.iter().map(|(_, job)| match &job.0 {
        What::Load(request) => (request.streams.len(), request.types.len()),
        other => panic!("{other:?}"),
    });
    assert_eq!(asked.collect::<Vec<_>>(), [(1, 0), (1, 1)]);
}

/// What happened: after a store had moved, an append of a new type to a known stream was never answered, and the old
/// store was asked for the type thousands of times a second. Goal: it is refused as one to an unknown stream is; what
/// waits for nothing of that goes on.
#[test]
fn a_type_that_cannot_be_looked_up_fails_its_appends() {
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.settle();
    let event = EventData::json(EventType::new("unknown").expect("valid"), "{}").without_id();
    let waits = d.request(Append::to(name("s"), Any, vec![event]));
    let known = d.append("s", Any, 1);
    let (id, what) = d.next_read();
    let What::Load(request) = what else {
        panic!("{what:?}");
    };
    assert_eq!((request.streams.len(), request.types.len()), (0, 1));
    let moved = Error::needs_administrator("the store has moved");
    d.on(Input::Read(id, Answer(Gave::Loaded(Err(moved)))));
    assert!(matches!(d.kind(waits), ErrorKind::Unavailable(_)));
    assert!(d.reads.is_empty());
    d.settle();
    assert_eq!(d.position(known), Position(4));
}

/// Goal: appends that waited for the same look and do not fit into one batch go with the next ones.
#[test]
fn what_has_waited_and_does_not_fit_goes_with_the_next_batch() {
    let config = Config {
        batch_events_max: 1,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    let waits = ["a", "b", "c"].map(|stream| d.bring(Append::to(name(stream), Any, some(1))));
    d.work();
    d.do_reads();
    for (waited, position) in waits.into_iter().zip(3..) {
        assert_eq!(d.sizes(), [1]);
        d.commit();
        assert_eq!(d.position(waited), Position(position));
    }
}

/// Goal: an append that is given up tells why.
#[test]
fn an_append_that_is_given_up_names_the_fault() {
    let mut d = Driver::running(Config::default(), 1);
    let doubtful = d.append("s", Any, 1);
    let waits = d.append("t", Any, 1);
    d.fail(lost());
    d.wants_connection = false;
    d.on(Input::Connected(Err(Error::unavailable("away"))));
    d.pass(Duration::from_secs(30));
    assert!(matches!(d.kind(doubtful), ErrorKind::OutcomeUnknown(_)));
    let ErrorKind::Unavailable(why) = d.kind(waits) else {
        panic!("{}", d.kind(waits));
    };
    assert!(why.contains("away"), "{why}");
}

/// Goal: an append does not overtake an earlier one of its stream. What happened: both had waited for their stream;
/// when it was known, the ids of the first one had to be looked up, and the second one, whose ids the store makes, was
/// stored meanwhile.
#[test]
fn an_append_does_not_overtake_one_that_waits_once_more() {
    let stored = Driver::running(Config::default(), 1).rows;
    let mut d = Driver::new(Config::default(), 1);
    d.rows = stored;
    d.connect();
    d.do_reads();
    let first = d.bring(Append::to(name("s"), Any, some(1)));
    let without_ids = some(1)
        .into_iter()
        .map(|event| EventData { id: None, ..event });
    let second = d.bring(Append::to(name("s"), Any, without_ids.collect()));
    d.work();
    d.settle();
    assert!(d.position(first) < d.position(second));
}

/// Goal: what is looked for because of a condition is looked for again while the database is away, until the append is
/// given up. What happened: a connection of the pool that was lost refused appends that would have been stored.
#[test]
fn a_search_for_a_condition_is_tried_again_until_the_append_is_given_up() {
    let mut d = Driver::running(Config::default(), 1);
    let began = d.now.moment;
    let request = provided(&d, Append::to(name("s"), Any, some(1)), &["a"], Position(0));
    let waits = d.request(request.clone());
    let mut pauses = Vec::new();
    while pauses.len() < 3 {
        d.fail_read();
        assert!(d.is_open(waits) && d.reads.is_empty(), "not at once");
        let wake = d.sequencer.wake_at().expect("is tried again");
        pauses.push(wake.since(d.now.moment));
        d.pass(wake.since(d.now.moment));
    }
    assert_eq!(pauses, [MS * 10, MS * 20, MS * 40]);
    let (id, what) = d.next_read();
    assert!(matches!(what, What::Match(_)));
    d.on(Input::Read(id, Answer(Gave::Matched(Ok(None)))));
    d.commit();
    assert_eq!(d.position(waits), Position(3));
    assert_eq!(d.sequencer.wake_at(), None);
    assert_eq!(d.stats().condition_lookups, 4);
    // One that lasts is answered at once, and one that does not end within the time.
    let mut d = Driver::running(Config::default(), 1);
    let refused = d.request(provided(&d, tagged("s", "a"), &["a"], Position(0)));
    let (id, job) = d.reads.pop_front().expect("is read");
    let lasting = ErrorKind::Unsupported("the file cannot be read".into());
    d.on(Input::Read(id, job.fail(lasting.into())));
    assert!(matches!(d.kind(refused), ErrorKind::Unsupported(_)));
    let waits = d.request(provided(&d, tagged("s", "a"), &["a"], Position(0)));
    while d.is_open(waits) {
        d.fail_read();
        d.pass(
            d.sequencer
                .wake_at()
                .expect("is tried again")
                .since(d.now.moment),
        );
        assert!(d.now.moment.since(began) < Duration::from_secs(32));
    }
    let ErrorKind::Unavailable(why) = d.kind(waits) else {
        panic!("{}", d.kind(waits));
    };
    assert!(why.contains("no answer"), "{why}");
    assert!(d.reads.is_empty());
}

/// Goal: nothing is looked for on behalf of an append that was answered.
#[test]
fn searches_of_answered_appends_are_dropped() {
    let mut d = Driver::running(Config::default(), 1);
    let many = 20;
    let waits: Vec<u32> = (0..many)
        .map(|_| d.request(provided(&d, tagged("s", "a"), &["a"], Position(0))))
        .collect();
    // Those that touch the same stream come one after the other, so this is the only search.
    assert_eq!(d.reads.len(), 1);
    let others: Vec<u32> = (0..many)
        .map(|number| {
            let stream = format!("new-{number}");
            let request = provided(&d, tagged(&stream, "a"), &["a"], Position(0));
            let ticket = d.bring(request);
            d.work();
            ticket
        })
        .collect();
    let loads = |d: &Driver| {
        let is_load = |(_, job): &&(JobId, Job)| matches!(job.0, What::Load(_));
        d.reads.iter().filter(is_load).count()
    };
    while loads(&d) > 0 {
        let at = d
            .reads
            .iter()
            .position(|(_, job)| matches!(job.0, What::Load(_)));
        let (id, job) = d.reads.remove(at.expect("is there")).expect("is there");
        let answer = d.read(&job);
        d.on(Input::Read(id, answer));
    }
    assert_eq!(d.reads.len(), 8, "no more at once");
    // One fails, so that the age of those that wait is looked at.
    d.fail_read();
    d.pass(Duration::from_secs(30));
    assert!(waits.iter().chain(&others).all(|one| !d.is_open(*one)));
    while let Some((id, _)) = d.reads.pop_front() {
        d.on(Input::Read(id, Answer(Gave::Matched(Ok(None)))));
    }
    // One more has begun in the place of the one that failed.
    assert_eq!(
        d.stats().condition_lookups,
        9,
        "nobody waits for the others"
    );
}

/// Goal: a condition that needs many comparisons is compared in several turns; meanwhile other appends are decided, and
/// what they bring is compared as well.
#[test]
fn a_costly_condition_takes_turns() {
    let config = Config {
        compared_values_max: 1,
        ..Config::default()
    };
    let mut d = Driver::running(config, 1);
    let begun = d.end().position;
    // From now on the newest events are kept.
    d.request(provided(&d, tagged("s", "a"), &["a"], begun));
    d.settle();
    for number in 0..24 {
        d.request(tagged("s", ["a", "b"][number % 2]));
        d.settle();
    }
    let costly = d.request(provided(&d, tagged("s", "c"), &["a", "b"], begun));
    assert!(d.sequencer.wants_turn() && d.is_open(costly) && d.sent.is_empty());
    let plain = d.append("t", Any, 1);
    assert_eq!(d.sizes(), [1], "it does not wait for the costly one");
    d.commit();
    assert!(!d.is_open(plain));
    let mut turns = 1;
    while d.sequencer.wants_turn() {
        d.work();
        turns += 1;
    }
    assert!((5..20).contains(&turns), "{turns}");
    d.settle();
    assert!(d.position(plain) < d.position(costly));
    assert!(d.stats().condition_turns >= 3 && d.reads.is_empty());
}

/// What happened: searches that always exceeded the time went first again, and one pause was for all: eight of them
/// held all the places, and no other append with a condition was ever answered.
#[test]
fn searches_that_fail_hold_up_no_others() {
    const PLACES: u64 = 8;
    let (mut reads, now) = (Reads::default(), Moment::START);
    let seek = |reads: &mut Reads, after: u64| {
        let search = MatchSearch {
            filter: Arc::new(Filter::ALL),
            after: Position(after),
            until: Position(99),
        };
        reads.seek_match(search, 1, None);
    };
    let begin = |reads: &mut Reads, at| {
        let (id, job) = reads.next_match(at)?;
        match job.0 {
            What::Match(search) => Some((id, search.after.0)),
            other => panic!("{other:?}"),
        }
    };
    let fail = |reads: &mut Reads, id, at| {
        let Some(Purpose::Match(sought)) = reads.end(id) else {
            panic!("no search is under way");
        };
        reads.retry_match(LogId(0), sought, &Error::unavailable("too slow"), at);
    };
    (0..PLACES).for_each(|number| seek(&mut reads, number));
    let (first, begun) = begin(&mut reads, now).expect("a place is free");
    assert_eq!(begun, 0);
    for number in 1..PLACES {
        assert_eq!(begin(&mut reads, now).map(|(_, begun)| begun), Some(number));
    }
    seek(&mut reads, 20);
    assert!(begin(&mut reads, now).is_none(), "all places are taken");
    fail(&mut reads, first, now);
    assert!(reads.failing().is_some());
    let (id, begun) = begin(&mut reads, now).expect("without a pause");
    assert_eq!(begun, 20, "not the one that has failed");
    assert_eq!(reads.wake_at(), None, "all places are taken again");
    reads.end(id);
    assert!(begin(&mut reads, now).is_none(), "it pauses");
    let until = reads.wake_at().expect("it is tried again");
    assert!(until > now);
    // Another one comes during the pause, and goes at once; then it is the turn of the one that has failed.
    seek(&mut reads, 21);
    let (id, begun) = begin(&mut reads, now).expect("without a pause");
    assert_eq!(begun, 21);
    reads.end(id);
    let (id, begun) = begin(&mut reads, until).expect("the pause is over");
    assert_eq!(begun, 0);
    // Its pauses become longer.
    fail(&mut reads, id, until);
    let next = reads.wake_at().expect("it is tried again");
    assert!(next.since(until) > until.since(now));
}

/// What happened: a retry was found stored, and the commit with which that was to be answered missed, since another
/// process had appended: it had deleted or tombstoned the stream before the retry came. The retry was answered as
/// stored with the next commit, or as unknown. Goal: what was found is judged by what is known when it is answered.
#[test]
fn a_retry_that_was_found_stored_is_refused_if_others_have_ended_its_stream() {
    for kind in [LifecycleChange::Deleted, LifecycleChange::Tombstone] {
        let mut d = Driver::running(Config::default(), 1);
        let stored = d.rows[0].0.id;
        d.end_by_other("s", kind);
        let retry = d.request(Append::to(name("s"), Any, with_id(stored)));
        d.do_reads();
        assert_eq!(d.sizes(), [0], "it is confirmed");
        assert!(matches!(d.commit(), BatchOutcome::Missed));
        d.settle();
        let expected = match kind {
            LifecycleChange::Deleted => ErrorKind::StoredAndDeleted {
                stream: name("s"),
                position: Position(1),
            },
            _ => ErrorKind::StreamTombstoned(name("s")),
        };
        assert_eq!(*d.kind(retry), expected);
    }
}

/// What happened: a retry was found stored, and the log could not be followed to a commit that confirms it. It was told
/// of a lost connection that never was.
#[test]
fn a_retry_that_is_not_confirmed_is_told_of_no_lost_connection() {
    let mut d = Driver::running(Config::default(), 1);
    let stored = d.rows[0].0.id;
    d.append_by_other("t");
    d.removed.push(d.end().position);
    d.append_by_other("t");
    let retry = d.request(Append::to(name("s"), Any, with_id(stored)));
    d.do_reads();
    assert!(matches!(d.commit(), BatchOutcome::Missed));
    d.settle();
    let ErrorKind::OutcomeUnknown(why) = d.kind(retry) else {
        panic!("{}", d.kind(retry));
    };
    assert!(
        why.contains("found stored") && !why.contains("lost"),
        "{why}"
    );
}
