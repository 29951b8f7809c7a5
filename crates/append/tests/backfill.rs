//! After a start: retries are recognised while the ids of the window are still being read, at little cost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod support;

use std::sync::{Arc, Mutex};

use futures::future::join_all;
use gesta_append::Config;
use gesta_core::ExpectedRevision::Any;
use gesta_core::backend::{EventLookup, RowId};
use gesta_core::*;
use gesta_kit::faulty::{Answers, Read, World};
use support::{Process, check, events, eventually, start_with, world};

/// The ids of so many positions are read and added together.
const RANGE: u64 = 40_000;
/// In parts.
const PARTS: usize = 2;
/// Appends that are looked up before that begins.
const LOOKED_UP_BEFORE: usize = 16;

fn start(world: &Arc<World>) -> Process {
    start_with(world, Config::default())
}

/// Lookups of ids: how many events each, and up to which position.
#[derive(Clone, Default)]
struct IdLookups(Arc<Mutex<Vec<(usize, Position)>>>);

impl IdLookups {
    /// Notes those of a process from now on. Reads for which `fails` is true fail.
    fn note(&self, process: &Process, fails: impl Fn(Read<'_>) -> bool + Send + 'static) {
        let lookups = Arc::clone(&self.0);
        process.fail_reads(move |read| {
            if let Read::Lookup(EventLookup::Ids { events, until, .. }) = read {
                lookups.lock().unwrap().push((events.len(), *until));
            }
            fails(read).then(|| Error::unavailable("no answer within 10 s"))
        });
    }

    /// Those since the last call.
    fn take(&self) -> Vec<(usize, Position)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Starts a process that reads so many parts of the log for their ids and no more, and notes its lookups.
fn start_noted(world: &Arc<World>, parts: usize) -> (Process, IdLookups) {
    let (process, lookups) = (start(world), IdLookups::default());
    process.release_only(Answers::Ids, parts);
    lookups.note(&process, |_| false);
    (process, lookups)
}

fn event() -> EventData {
    EventData::json(EventType::new("e").unwrap(), "{}").with_id(EventId::random())
}

fn to(stream: usize, events: Vec<EventData>) -> Append {
    let name = StreamId::new(format!("s-{stream}")).unwrap();
    Append::to(name, Any, events)
}

async fn append_all(pipeline: &Process, requests: &[Append]) -> Vec<Appended> {
    let answers = requests
        .iter()
        .map(|request| pipeline.append(request.clone()));
    let answers = join_all(answers).await;
    answers.into_iter().map(Result::unwrap).collect()
}

/// Goal: after a start, appends to many old streams do not cost a statement each.
#[tokio::test]
async fn retries_are_sought_together() {
    let world = world(4);
    let requests: Vec<_> = (0..300).map(|stream| to(stream, vec![event()])).collect();
    let first = append_all(&start(&world), &requests).await;
    let (again, lookups) = start_noted(&world, 0);
    assert_eq!(append_all(&again, &requests).await, first);
    let fresh: Vec<_> = (0..300).map(|stream| to(stream, vec![event()])).collect();
    for appended in append_all(&again, &fresh).await {
        assert_eq!(appended.streams[0].first_revision, Revision(1));
    }
    let lookups = lookups.take();
    assert_eq!(lookups.iter().map(|(events, _)| events).sum::<usize>(), 600);
    assert!(lookups.len() < 20, "{lookups:?}");
    check(&world);
}

/// Goal: a stream that is too long to be searched hurts nobody but itself.
#[tokio::test]
async fn a_lookup_that_fails_fails_for_its_own_stream_alone() {
    let world = world(4);
    let requests: Vec<_> = (0..300).map(|stream| to(stream, vec![event()])).collect();
    let first = append_all(&start(&world), &requests).await;
    // The row of a stream is the position of its first event.
    let too_long = RowId(first[77].position.0);
    let (again, lookups) = start_noted(&world, 0);
    lookups.note(&again, move |read| match read {
        Read::Lookup(EventLookup::Ids { events, .. }) => {
            events.iter().any(|(stream, _)| *stream == too_long)
        }
        _ => false,
    });
    let answers = join_all(requests.iter().map(|request| again.append(request.clone()))).await;
    for (number, (answer, first)) in answers.into_iter().zip(first).enumerate() {
        match answer {
            Ok(answer) => assert_eq!(answer, first),
            Err(error) => {
                assert_eq!(number, 77, "{error}");
                assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
            }
        }
    }
    assert_eq!(events(&world).len(), 300);
    check(&world);
}

/// Goal: what was appended last is known first, and only the rest is searched.
#[tokio::test]
async fn the_window_is_read_newest_first() {
    let world = world(4);
    let before = start(&world);
    let mut requests = Vec::new();
    for number in 0..500_usize {
        let request = to(number % 10, (0..1_000).map(|_| event()).collect());
        before.append(request.clone()).await.unwrap();
        requests.push(request);
    }
    let (again, lookups) = start_noted(&world, PARTS);
    for request in &requests[..LOOKED_UP_BEFORE] {
        again.append(request.clone()).await.unwrap();
    }
    eventually("a range was read", || again.left(Answers::Ids) == 0).await;
    // The range may have been read without being added yet.
    let newest = &requests[490];
    for _ in 0..1_000 {
        again.append(newest.clone()).await.unwrap();
        if lookups.take().is_empty() {
            break;
        }
    }
    again.append(newest.clone()).await.unwrap();
    assert_eq!(lookups.take(), []);
    let oldest = &requests[0];
    let stored = again.append(oldest.clone()).await.unwrap();
    assert_eq!(stored.streams[0].first_revision, Revision(0));
    assert_eq!(
        lookups.take(),
        [(1, Position(500_000 - RANGE))],
        "only after what was read"
    );

    again.release(Answers::Ids);
    for _ in 0..10_000 {
        again.append(to(0, vec![event()])).await.unwrap();
        if lookups.take().is_empty() {
            break;
        }
    }
    assert_eq!(again.append(oldest.clone()).await.unwrap(), stored);
    assert_eq!(lookups.take(), []);
    check(&world);
}

/// Goal: a process that has missed much of what others appended is right about streams and retries, whether it reads
/// what it has missed or begins anew.
#[tokio::test]
async fn a_process_that_has_missed_much_knows_what_others_have_stored() {
    let world = world(4);
    let (idle, busy) = (start(&world), start(&world));
    let own = to(1, vec![event()]);
    let first = idle.append(own.clone()).await.unwrap();
    let mut revisions = 1;
    for thousands in [1, 30, 80] {
        let mut theirs = own.clone();
        for _ in 0..thousands {
            theirs = to(1, (0..1_000).map(|_| event()).collect());
            busy.append(theirs.clone()).await.unwrap();
            revisions += 1_000;
        }
        let next = idle.append(to(1, vec![event()])).await.unwrap();
        assert_eq!(next.streams[0].first_revision, Revision(revisions));
        revisions += 1;
        assert_eq!(idle.append(own.clone()).await.unwrap(), first);
        let again = idle.append(theirs).await.unwrap();
        assert_eq!(again.streams[0].last_revision, Revision(revisions - 2));
    }
    check(&world);
}

/// Goal: a process that appends now and then beside a busy one does not read the ids of ten minutes each time.
#[tokio::test]
async fn who_appends_seldom_does_not_read_the_window() {
    let world = world(4);
    let (seldom, busy) = (start(&world), start(&world));
    seldom.append(to(1, vec![event()])).await.unwrap();
    seldom.release_only(Answers::Ids, 1_000);
    for _ in 0..3 {
        for _ in 0..70 {
            let theirs = to(2, (0..1_000).map(|_| event()).collect());
            busy.append(theirs).await.unwrap();
        }
        let own = to(1, vec![event()]);
        let first = seldom.append(own.clone()).await.unwrap();
        assert_eq!(seldom.append(own).await.unwrap(), first);
    }
    assert_eq!(seldom.left(Answers::Ids), 1_000);
    check(&world);
}

/// Goal: a database that is away for a moment does not make every append cost a look for the next ten minutes.
#[tokio::test(start_paused = true)]
async fn reading_the_window_is_tried_again() {
    let world = world(4);
    let request = to(1, vec![event()]);
    let first = start(&world).append(request.clone()).await.unwrap();
    let (again, lookups) = (start(&world), IdLookups::default());
    lookups.note(&again, |read| matches!(read, Read::Ids));
    for _ in 0..LOOKED_UP_BEFORE * 2 {
        assert_eq!(again.append(request.clone()).await.unwrap(), first);
        assert_eq!(lookups.take().len(), 1);
    }
    lookups.note(&again, |_| false);
    let began = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert_eq!(again.append(request.clone()).await.unwrap(), first);
        if lookups.take().is_empty() {
            return;
        }
        assert!(began.elapsed().as_secs() < 60, "never read");
    }
}
