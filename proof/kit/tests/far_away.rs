//! Many small batches under way to a database that is far away, and every fault.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gesta_core::*;
use gesta_kit::faulty::{FaultyStore, Random, RandomFaults, StoredEvent, World};

const CALLERS: u64 = 100;
const APPENDS_EACH: u64 = 8;

/// The answer of an append: where it is, or unknown.
type Answer = Option<Position>;

fn name_of(caller: u64) -> String {
    format!("caller-{caller}")
}

/// The n-th event of a caller. Every other caller makes the ids itself, so that it may try again whatever happens.
fn event_of(caller: u64, number: u64) -> EventData {
    let event_type = EventType::new("called").expect("valid");
    let event = EventData::json(event_type, number.to_string());
    match caller % 2 {
        0 => event.with_id(EventId(uuid::Uuid::from_u128(u128::from(
            caller * APPENDS_EACH + number + 1,
        )))),
        _ => event.without_id(),
    }
}

/// Appends one event after the other to its own stream, each until that has an end.
async fn call(store: Arc<gesta_store::Store>, caller: u64, mut random: Random) -> Vec<Answer> {
    let stream = name_of(caller);
    let mut answers = Vec::new();
    for number in 0..APPENDS_EACH {
        tokio::time::sleep(random.duration(Duration::from_millis(10))).await;
        let event = event_of(caller, number);
        answers.push(loop {
            let events = vec![event.clone()];
            let append = store.append_to(&stream, ExpectedRevision::Any, events);
            match append.await {
                Ok(appended) => break Some(appended.position),
                Err(error) => match error.kind() {
                    ErrorKind::OutcomeUnknown(_) if event.id.is_none() => break None,
                    ErrorKind::OutcomeUnknown(_) | ErrorKind::Refused(_) => {}
                    _ => assert!(error.is_retryable(), "{error}"),
                },
            }
        });
    }
    answers
}

/// Every event at most once, the acknowledged ones where it was said, and all in their order.
fn check(stored: &[StoredEvent], answers: &[Vec<Answer>], seed: u64) {
    let mut streams: HashMap<String, Vec<(u64, Position)>> = HashMap::new();
    for StoredEvent { event, .. } in stored {
        let number = std::str::from_utf8(&event.data)
            .ok()
            .and_then(|data| data.parse().ok());
        // Events of the processes that overtake are something else.
        if let Some(number) = number {
            let stream = streams.entry(event.stream.to_string()).or_default();
            assert_eq!(event.revision.0, stream.len() as u64, "seed {seed}");
            stream.push((number, event.position));
        }
    }
    for (caller, answers) in (0..).zip(answers) {
        let found = streams.remove(&name_of(caller)).unwrap_or_default();
        assert!(
            found.is_sorted_by(|(a, _), (b, _)| a < b),
            "seed {seed}, caller {caller}: {found:?}"
        );
        let found: HashMap<u64, Position> = found.into_iter().collect();
        for (number, answer) in (0..).zip(answers) {
            if answer.is_some() {
                let place = found.get(&number).copied();
                assert_eq!(
                    place, *answer,
                    "seed {seed}, caller {caller}, event {number}"
                );
            }
        }
    }
}

/// Plays one history of two processes, one of them far away. Returns how many batches it had under way at most.
async fn play(seed: u64) -> u64 {
    let world = World::new(1);
    let stores = [world.store(), world.store()];
    stores[0].set_round_trip(Duration::from_millis(60));
    for (number, store) in (0..).zip(&stores) {
        store.random_faults_of(RandomFaults::new(seed * 2 + number, 0.02));
    }
    let mut random = Random::new(seed);
    let callers = (0..CALLERS).map(|caller| {
        // The near process appends now and then.
        let store = &stores[usize::from(caller % 20 == 0)];
        tokio::spawn(call(store.share(), caller, random.fork()))
    });
    let answers = join_all(callers.collect::<Vec<_>>()).await;
    let answers: Vec<_> = answers.into_iter().map(|a| a.expect("ends")).collect();
    stores.iter().for_each(FaultyStore::heal);
    check(&world.stored(), &answers, seed);
    stores[0].commits_under_way_most()
}

/// Goal: a database far away has dozens of batches on their way that are chained to each other. Whichever of them
/// fails, is lost, late or overtaken: nothing is lost, doubled or out of order.
#[tokio::test(start_paused = true)]
async fn dozens_of_batches_under_way_keep_the_contract() {
    let mut most = 0;
    for seed in 0..150 {
        most = most.max(play(seed).await);
    }
    assert!(most > 20, "at most {most} were under way");
}
