//! What has to be looked up before a command can be decided.

use super::*;

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
    let began = d.now.instant;
    let waits = d.append("new", Any, 1);
    let mut pauses = Vec::new();
    while d.is_open(waits) {
        d.fail_read();
        assert!(d.reads.is_empty(), "not at once");
        let wake = d.sequencer.wake_at().expect("is tried again");
        pauses.push(wake - d.now.instant);
        d.pass(wake - d.now.instant);
        assert!(d.now.instant - began < Duration::from_secs(32));
    }
    assert_eq!(pauses[..3], [MS * 10, MS * 20, MS * 40]);
    assert!(d.now.instant - began >= Duration::from_secs(30));
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
