//! A consumer under load: several servers append, and it is killed again and again.

use std::collections::HashSet;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gesta_client::HttpStore;
use gesta_core::{Append, EventData, EventId, EventStore, EventType, ExpectedRevision, StreamId};
use gesta_kit::depth;

use crate::consumer::Consumer;
use crate::source::{Source, World, decoding};
use crate::support::{Server, Tries, code, run, stderr, wait_until};

const WRITERS: usize = 6;
/// Streams of a writer, each of which gets events of every type.
const STREAMS: usize = 40;
const LOGS: usize = 4;

/// Appends one to three events at a time, each append again with the same ids until it is acknowledged. Gives the ids.
async fn write(store: HttpStore, writer: usize, stop: Arc<AtomicBool>) -> Vec<EventId> {
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        let stream = StreamId::new(format!("writer-{writer}-{}", number % STREAMS)).unwrap();
        let event = |part| {
            let kind = EventType::new(format!("kind-{}", (number + part) % 7)).unwrap();
            // A line feed in the data: messages are not lines.
            EventData::json(kind, format!("{{\"number\":\n{number}}}")).with_id(EventId::random())
        };
        let events: Vec<EventData> = (0..1 + number % 3).map(event).collect();
        acknowledged.extend(events.iter().filter_map(|event| event.id));
        let append = Append::to(stream, ExpectedRevision::Any, events);
        while let Err(error) = store.append(append.clone()).await {
            assert!(error.is_retryable(), "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        number += 1;
    }
    acknowledged
}

/// Runs a command, and again while it says that the store has too much to do.
fn answered(arguments: &[&str]) {
    const TRY_AGAIN: i32 = 5;
    let tries = Tries::of(format!("{arguments:?}"));
    loop {
        let output = run(arguments);
        if code(&output) != TRY_AGAIN {
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            return;
        }
        std::thread::sleep(tries.pause_after(stderr(&output)));
    }
}

fn kill(mut receiver: Child, source: Source<'_>) {
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    wait_until("the slot is free", || source.slot("active") == "f");
}

/// Goal: whatever two servers append at once, a consumer that is killed and goes on from what it has confirmed gets
/// every event and every removal once, each log in the order of its positions.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_killed_gets_every_event_once() {
    let Some(world) = World::captured(decoding(), &LOGS.to_string()) else {
        return;
    };
    let (source, url) = (world.source(), world.source().url());
    let servers = [Server::start(&url), Server::start(&url)];
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = HttpStore::connect(&servers[writer % servers.len()].url).unwrap();
            tokio::spawn(write(store, writer, Arc::clone(&stop)))
        })
        .collect();
    let (mut consumer, mut taken_before) = (Consumer::default(), Vec::new());
    tokio::task::block_in_place(|| {
        for number in 0..depth::count(4, 60) {
            let name = format!("run.{number}");
            let mut receiver = source.receiver(&url, &name);
            receiver.args(["--status-interval", "1", "--fsync-interval", "1"]);
            let receiver = receiver.spawn().unwrap();
            wait_until("the consumer writes", || source.file(&name).exists());
            wait_until("the consumer confirms what it got first", || {
                let written = source.written(&name);
                let first = written.first().map(|transaction| transaction.commit);
                first.is_some_and(|first| source.confirmed() > first)
            });
            kill(receiver, source);
            if number == 0 {
                let streams = "SELECT count(*) FROM gesta.streams WHERE name = 'writer-0-0'";
                wait_until("the stream begins", || source.value(streams) == "1");
                answered(&["stream", "delete", "writer-0-0", "--yes", "--store", &url]);
                answered(&["scavenge", "--yes", "--store", &url]);
            }
            taken_before.push(consumer.events.len());
            consumer.take_run(&source.written(&name));
        }
    });
    stop.store(true, Ordering::SeqCst);
    let mut acknowledged = HashSet::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap().iter().map(ToString::to_string));
    }
    tokio::task::block_in_place(|| consumer.take_run(&source.receive("last")));

    let came: HashSet<String> = consumer
        .events
        .iter()
        .map(|(_, event)| event.id.clone())
        .collect();
    let missing: Vec<&String> = acknowledged.difference(&came).collect();
    assert!(
        missing.is_empty(),
        "acknowledged, and never came: {missing:?}"
    );
    for log in 0..LOGS {
        let log = i64::try_from(log).unwrap();
        let of_log = consumer.events.iter().filter(|((of, _), _)| *of == log);
        let positions: Vec<i64> = of_log.map(|((_, position), _)| *position).collect();
        let whole: Vec<i64> = (1..).take(positions.len()).collect();
        assert_eq!(positions, whole, "log {log}");
    }
    // Else each run would have begun at the start, and nothing would be known of what is confirmed.
    let from_start: usize = taken_before.iter().sum();
    assert!(
        consumer.repeated < from_start,
        "{} of {from_start} came again",
        consumer.repeated
    );
    assert!(!consumer.removed.is_empty(), "something was scavenged");
    assert_eq!(consumer.kept(), source.stored());
    println!(
        "{} events came, {} again; before each run: {taken_before:?}",
        consumer.events.len(),
        consumer.repeated
    );
    for server in servers {
        server.stop();
    }
}
