//! After a start: retries are recognised while the ids of the window are still being read, at little cost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod support;

use std::sync::Arc;

use futures::future::join_all;
use gesta_append::{Config, Pipeline};
use gesta_core::ExpectedRevision::Any;
use gesta_core::*;
use support::start::start_with;
use support::{Sim, eventually};

/// The ids of so many positions are read and added together.
const RANGE: u64 = 40_000;
/// In parts.
const PARTS: usize = 2;
/// Appends that are looked up before that begins.
const LOOKED_UP_BEFORE: usize = 16;

fn start(sim: &Arc<Sim>) -> Pipeline {
    start_with(sim, Config::default())
}

fn event() -> EventData {
    EventData::json(EventType::new("e").unwrap(), "{}").with_id(EventId::random())
}

fn to(stream: usize, events: Vec<EventData>) -> Append {
    let name = StreamId::new(format!("s-{stream}")).unwrap();
    Append::to(name, Any, events)
}

async fn append_all(pipeline: &Pipeline, requests: &[Append]) -> Vec<Appended> {
    let answers = requests
        .iter()
        .map(|request| pipeline.append(request.clone()));
    let answers = join_all(answers).await;
    answers.into_iter().map(Result::unwrap).collect()
}

/// Goal: after a start, appends to many old streams do not cost a statement each.
#[tokio::test]
async fn retries_are_sought_together() {
    let sim = Sim::new(4);
    let requests: Vec<_> = (0..300).map(|stream| to(stream, vec![event()])).collect();
    let first = append_all(&start(&sim), &requests).await;
    sim.set_reading_ids(Some(0));
    let again = start(&sim);
    assert_eq!(append_all(&again, &requests).await, first);
    let fresh: Vec<_> = (0..300).map(|stream| to(stream, vec![event()])).collect();
    for appended in append_all(&again, &fresh).await {
        assert_eq!(appended.streams[0].first_revision, Revision(1));
    }
    let lookups = sim.take_id_lookups();
    assert_eq!(lookups.iter().map(|(events, _)| events).sum::<usize>(), 600);
    assert!(lookups.len() < 20, "{lookups:?}");
    sim.check();
}

/// Goal: a stream that is too long to be searched hurts nobody but itself.
#[tokio::test]
async fn a_lookup_that_fails_fails_for_its_own_stream_alone() {
    let sim = Sim::new(4);
    let requests: Vec<_> = (0..300).map(|stream| to(stream, vec![event()])).collect();
    let first = append_all(&start(&sim), &requests).await;
    sim.set_reading_ids(Some(0));
    sim.set_too_long(StreamId::new("s-77").unwrap());
    let again = start(&sim);
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
    assert_eq!(sim.events().len(), 300);
    sim.check();
}

/// Goal: what was appended last is known first, and only the rest is searched.
#[tokio::test]
async fn the_window_is_read_newest_first() {
    let sim = Sim::new(4);
    let before = start(&sim);
    let mut requests = Vec::new();
    for number in 0..500_usize {
        let request = to(number % 10, (0..1_000).map(|_| event()).collect());
        before.append(request.clone()).await.unwrap();
        requests.push(request);
    }
    sim.set_reading_ids(Some(PARTS));
    let again = start(&sim);
    for request in &requests[..LOOKED_UP_BEFORE] {
        again.append(request.clone()).await.unwrap();
    }
    eventually("a range was read", || sim.parts_left() == Some(0)).await;
    // The range may have been read without being added yet.
    let newest = &requests[490];
    for _ in 0..1_000 {
        again.append(newest.clone()).await.unwrap();
        if sim.take_id_lookups().is_empty() {
            break;
        }
    }
    again.append(newest.clone()).await.unwrap();
    assert_eq!(sim.take_id_lookups(), []);
    let oldest = &requests[0];
    let stored = again.append(oldest.clone()).await.unwrap();
    assert_eq!(stored.streams[0].first_revision, Revision(0));
    assert_eq!(
        sim.take_id_lookups(),
        [(1, Position(500_000 - RANGE))],
        "only after what was read"
    );

    sim.set_reading_ids(Some(usize::MAX));
    for _ in 0..10_000 {
        again.append(to(0, vec![event()])).await.unwrap();
        if sim.take_id_lookups().is_empty() {
            break;
        }
    }
    assert_eq!(again.append(oldest.clone()).await.unwrap(), stored);
    assert_eq!(sim.take_id_lookups(), []);
    sim.check();
}

/// Goal: a process that has missed much of what others appended is right about streams and retries, whether it reads
/// what it has missed or begins anew.
#[tokio::test]
async fn a_process_that_has_missed_much_knows_what_others_have_stored() {
    let sim = Sim::new(4);
    let (idle, busy) = (start(&sim), start(&sim));
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
    sim.check();
}

/// Goal: a process that appends now and then beside a busy one does not read the ids of ten minutes each time.
#[tokio::test]
async fn who_appends_seldom_does_not_read_the_window() {
    let sim = Sim::new(4);
    let (seldom, busy) = (start(&sim), start(&sim));
    seldom.append(to(1, vec![event()])).await.unwrap();
    sim.set_reading_ids(Some(1_000));
    for _ in 0..3 {
        for _ in 0..70 {
            let theirs = to(2, (0..1_000).map(|_| event()).collect());
            busy.append(theirs).await.unwrap();
        }
        let own = to(1, vec![event()]);
        let first = seldom.append(own.clone()).await.unwrap();
        assert_eq!(seldom.append(own).await.unwrap(), first);
    }
    assert_eq!(sim.parts_left(), Some(1_000));
    sim.check();
}

/// Goal: a database that is away for a moment does not make every append cost a look for the next ten minutes.
#[tokio::test(start_paused = true)]
async fn reading_the_window_is_tried_again() {
    let sim = Sim::new(4);
    let request = to(1, vec![event()]);
    let first = start(&sim).append(request.clone()).await.unwrap();
    sim.set_reading_ids(None);
    let again = start(&sim);
    for _ in 0..LOOKED_UP_BEFORE * 2 {
        assert_eq!(again.append(request.clone()).await.unwrap(), first);
        assert_eq!(sim.take_id_lookups().len(), 1);
    }
    sim.set_reading_ids(Some(usize::MAX));
    let began = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert_eq!(again.append(request.clone()).await.unwrap(), first);
        if sim.take_id_lookups().is_empty() {
            return;
        }
        assert!(began.elapsed().as_secs() < 60, "never read");
    }
}
