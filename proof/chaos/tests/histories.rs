//! Histories as files: their form is the one that is described, and faults in them are found.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod support;

use std::sync::Arc;

use gesta_core::{Append, EventStoreExt as _, ExpectedRevision, Revision};
use gesta_kit::depth;
use gesta_kit::faulty::Random;
use gesta_kit::history::{Outcome, RunHistory};
use gesta_kit::operations;
use gesta_kit::support::{events, stream};
use gesta_memory::MemoryStore;
use support::histories;

/// Goal: the lines on the page are read and written again letter by letter, every kind of operation is among them, and
/// both judges understand them.
#[test]
fn the_form_is_the_one_that_is_described() {
    let page = include_str!("../README.md");
    let (_, example) = page.split_once("```json\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let read = operations::read(example.as_bytes()).unwrap();
    let mut written = Vec::new();
    operations::write(&read, &mut written).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), example);
    let kind = |line: &serde_json::Value| line["operation"].as_str().unwrap().to_owned();
    let mut kinds: Vec<String> = example
        .lines()
        .map(|line| kind(&serde_json::from_str(line).unwrap()))
        .collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 10, "{kinds:?}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    std::fs::write(&path, example).unwrap();
    histories::hold_before_both(&path, 0);
}

/// Goal: both judges say the same of the history of a healthy store with appends of unknown outcome, and of the faults
/// that are planted in it.
#[tokio::test(flavor = "multi_thread")]
async fn two_judges_say_the_same_of_planted_faults() {
    let store = Arc::new(MemoryStore::new());
    let history = RunHistory::new();
    let clients = (0..6).map(|client| {
        let (store, history) = (Arc::clone(&store), history.clone());
        tokio::spawn(async move { work(client, &store, &history).await })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let stored = store.read_everything().await.unwrap();
    history.check_against(&stored).assert_clean();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    let file = std::fs::File::create(&path).unwrap();
    operations::write(&history.operations(&stored), file).unwrap();
    histories::hold_before_both(&path, depth::count(100, 5_000));
}

/// A client that appends to streams and registers which it shares with others, and reads them.
async fn work(client: u64, store: &MemoryStore, history: &RunHistory) {
    let mut random = Random::new(client);
    for _ in 0..120 {
        let kind = *random.pick(&["stream", "register"]);
        let name = stream(&format!("{kind}-{}", random.below(3)));
        let seen = history.look(client, store, &name).await.unwrap();
        let expected = match (random.below(4), seen) {
            (0, _) => continue,
            (1, _) => ExpectedRevision::Any,
            (2, Some(seen)) => ExpectedRevision::Exact(Revision(seen.0 + random.below(2) as u64)),
            (_, Some(seen)) => ExpectedRevision::Exact(seen),
            (_, None) => ExpectedRevision::NoStream,
        };
        let request = Append::to(name, expected, events(1 + random.below(3)));
        if random.chance(0.03) {
            // Sent, and nobody waits for the answer; it may be stored or not.
            let attempt = history.begin_of(client, &request);
            if random.chance(0.5) {
                let _ = gesta_core::EventStore::append(store, request.clone()).await;
            }
            history.end(attempt, Outcome::Unknown);
            if random.chance(0.5) {
                continue;
            }
        }
        // Some are sent again although the answer is known.
        for _ in 0..1 + random.below(5) / 4 {
            let attempt = history.begin_of(client, &request);
            tokio::task::yield_now().await;
            let answer = gesta_core::EventStore::append(store, request.clone()).await;
            history.end(attempt, Outcome::from(&answer));
        }
    }
}
