//! Virtual streams under random use: two processes, of which one may die at any moment, deletes, scavenging, switching,
//! and fail-overs that lose commits; compared with what a naive computation over all events says.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gesta_core::backend::RunMode;
use gesta_core::*;
use gesta_store::{Config, VirtualStreamsConfig};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::*;

const STREAMS: [&str; 7] = [
    "cart-1", "cart-2", "cart-3", "show-1", "plain", "$mine-1", "-odd",
];
const TYPES: [&str; 4] = ["added", "paid", "$>", "$other"];
const VIRTUAL: [&str; 8] = [
    "$ce-cart",
    "$ce-show",
    "$ce-plain",
    "$ce-",
    "$et-added",
    "$et-paid",
    "$et-$>",
    "$streams",
];

/// An event that was stored once.
#[derive(Clone, Debug)]
struct Stored {
    position: u64,
    stream: String,
    revision: u64,
    event_type: String,
}

impl Stored {
    fn stands_in(&self, name: &str) -> bool {
        let of_system = self.stream.starts_with('$');
        if let Some(category) = name.strip_prefix("$ce-") {
            !of_system && self.stream.split('-').next() == Some(category)
        } else if let Some(event_type) = name.strip_prefix("$et-") {
            !self.event_type.starts_with('$') && self.event_type == event_type
        } else {
            !of_system && self.revision == 0
        }
    }
}

struct Play {
    random: StdRng,
    world: Arc<World>,
    processes: [Option<Process>; 2],
    /// Every event that was ever stored and not lost, by position.
    stored: BTreeMap<u64, Stored>,
    on: bool,
    /// Each place of a virtual stream that somebody has seen: the position and the text of its link.
    seen: BTreeMap<(String, u64), (u64, String)>,
    scavenges: bool,
    log: Vec<String>,
}

fn config(random: &mut StdRng) -> Config {
    Config {
        virtual_streams: VirtualStreamsConfig {
            page_events_max: random.random_range(1..8),
            linger: Duration::from_millis(random.random_range(0..40)),
            ..VirtualStreamsConfig::default()
        },
        ..Config::default()
    }
}

impl Play {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            world: World::new(1),
            processes: [None, None],
            stored: BTreeMap::new(),
            on: false,
            seen: BTreeMap::new(),
            // Scavenging and losing commits do not go together in this world.
            scavenges: seed.is_multiple_of(2),
            log: Vec::new(),
        }
    }

    fn store(&mut self, number: usize) -> Arc<gesta_store::Store> {
        let (world, random) = (&self.world, &mut self.random);
        let process = self.processes[number].get_or_insert_with(|| process(world, config(random)));
        Arc::clone(&process.store)
    }

    fn any_store(&mut self) -> Arc<gesta_store::Store> {
        let number = self.random.random_range(0..2);
        self.store(number)
    }

    fn pick<'a>(&mut self, among: &[&'a str]) -> &'a str {
        among[self.random.random_range(0..among.len())]
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..40 => self.append().await,
            40..50 => self.hide().await,
            50..58 => self.lose_or_scavenge().await,
            58..66 => self.kill(),
            66..70 => self.switch().await,
            70..80 => self.begin_a_read().await,
            _ => self.look().await,
        }
    }

    async fn append(&mut self) {
        let (name, count) = (self.pick(&STREAMS), self.random.random_range(1..6));
        let types: Vec<&str> = (0..count).map(|_| self.pick(&TYPES)).collect();
        let events: Vec<EventData> = types.iter().map(|event_type| event(event_type)).collect();
        let store = self.any_store();
        // A stream with a tombstone refuses.
        let Ok(appended) = store.append_to(name, ExpectedRevision::Any, events).await else {
            return;
        };
        self.log.push(format!("append {count} to {name}"));
        let first = appended.position.0 + 1 - count;
        for (i, event_type) in (0..).zip(types) {
            let stored = Stored {
                position: first + i,
                stream: name.to_owned(),
                revision: appended.streams[0].first_revision.0 + i,
                event_type: event_type.to_owned(),
            };
            self.stored.insert(stored.position, stored);
        }
    }

    /// A delete, a tombstone, or metadata that hide events.
    async fn hide(&mut self) {
        let (name, store) = (self.pick(&STREAMS[..5]), self.any_store());
        let what = self.random.random_range(0..8);
        self.log.push(format!("hide {what} of {name}"));
        if what < 5 {
            let kept = self.random.random_range(1..4);
            let metadata = StreamMetadata::parse(format!(r#"{{"$maxCount":{kept}}}"#));
            let request = SetStreamMetadata {
                stream: stream(name),
                expected: ExpectedRevision::Any,
                metadata: metadata.expect("valid"),
            };
            let _ = store.set_stream_metadata(request).await;
        } else {
            let request = DeleteStream {
                stream: stream(name),
                expected: ExpectedRevision::Any,
                kind: if what == 7 {
                    DeleteKind::Tombstone
                } else {
                    DeleteKind::Soft
                },
            };
            let _ = store.delete_stream(request).await;
        }
        // Positions of the events of the system are taken, too, but they stand in no virtual stream.
    }

    async fn lose_or_scavenge(&mut self) {
        if self.scavenges {
            // What is removed before it was looked at never gets a place; so everybody looks first.
            if self.on {
                self.look_at_all().await;
                self.log.push("scavenge".to_owned());
                let scavenged = self.any_store().scavenge(RunMode::Real, |_| {}).await;
                scavenged.expect("scavenged");
            }
            return;
        }
        self.append().await;
        self.begin_a_read().await;
        let end = self.world.end(LogId(0)).position.0;
        let lost = self.random.random_range(0..4).min(end);
        self.log.push(format!("lose {lost}"));
        self.world
            .lose_newest(LogId(0), usize::try_from(lost).expect("small"));
        for process in self.processes.iter().flatten() {
            process.faulty.begin_history();
        }
        self.stored.retain(|position, _| *position <= end - lost);
        self.seen.retain(|_, (position, _)| *position <= end - lost);
    }

    /// A process dies: wherever its task is, it goes no further.
    fn kill(&mut self) {
        let number = self.random.random_range(0..2);
        self.log.push(format!("kill {number}"));
        if let Some(process) = self.processes[number].take() {
            process.faulty.go_away();
        }
    }

    async fn switch(&mut self) {
        let on = !self.on || self.random.random_bool(0.2);
        if self.scavenges && !on {
            // See above: nobody may scavenge then.
            return;
        }
        self.log.push(format!("switch {on}"));
        let store = self.any_store();
        let status = store.switch_virtual_streams(on).await.expect("switched");
        assert_eq!(status.on, on);
        self.on = on;
    }

    /// Begins to read, and goes away.
    async fn begin_a_read(&mut self) {
        let (name, store) = (self.pick(&VIRTUAL), self.any_store());
        let mut reading = Box::pin(store.read_stream(ReadStream::forwards(stream(name))));
        for _ in 0..self.random.random_range(0..12) {
            if (&mut reading).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn look(&mut self) {
        let (name, store) = (self.pick(&VIRTUAL), self.any_store());
        self.look_at(&store, name).await;
    }

    async fn look_at_all(&mut self) {
        for name in VIRTUAL {
            let store = self.any_store();
            self.look_at(&store, name).await;
        }
    }

    async fn look_at(&mut self, store: &gesta_store::Store, name: &str) {
        let found = store.read_whole_stream(name).await;
        if !self.on {
            let error = found.expect_err("they are off");
            assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
            return;
        }
        let expected: Vec<&Stored> = self
            .stored
            .values()
            .filter(|one| one.stands_in(name))
            .collect();
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let none = matches!(error.kind(), ErrorKind::StreamNotFound(_));
                assert!(
                    none && expected.is_empty(),
                    "{name}: {error}; {:#?}",
                    self.log
                );
                return;
            }
        };
        let all = store.read_everything().await.expect("readable");
        let is_there = |position: u64| all.iter().any(|event| event.position.0 == position);
        // An event has its place by all that were ever stored, and is seen as long as it is there.
        let expected: Vec<(u64, u64, String)> = (0..)
            .zip(&expected)
            .filter(|(_, one)| is_there(one.position))
            .map(|(place, one)| {
                (
                    place,
                    one.position,
                    format!("{}@{}", one.revision, one.stream),
                )
            })
            .collect();
        let found: Vec<(u64, u64, String)> = found
            .iter()
            .map(|link| {
                let text = String::from_utf8(link.data.to_vec()).expect("text");
                (link.revision.0, link.position.0, text)
            })
            .collect();
        assert_eq!(found, expected, "{name}; {:#?}", self.log);
        for (place, position, text) in found {
            let link = (position, text);
            let before = self.seen.insert((name.to_owned(), place), link.clone());
            assert!(before.is_none_or(|before| before == link), "{name} {place}");
        }
    }
}

/// Goal: whatever happens, each virtual stream is what a naive computation says, and no place ever changes.
#[tokio::test(start_paused = true)]
async fn are_what_a_naive_computation_says() {
    for seed in 0..120 {
        let mut play = Play::new(seed);
        println!("seed {seed}");
        for _ in 0..80 {
            play.step().await;
        }
        if !play.on {
            let store = play.any_store();
            store.switch_virtual_streams(true).await.expect("switched");
            play.on = true;
        }
        play.look_at_all().await;
        for process in play.processes.into_iter().flatten() {
            process.store.shutdown().await.expect("shut down");
        }
    }
}

/// Goal: entries are written by whoever commits, without a reader, and an idle store does nothing.
#[tokio::test(start_paused = true)]
async fn are_written_after_commits_and_never_while_idle() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.append("cart-1", 3).await;
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    a.append("cart-1", 3).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let status = a.store.virtual_streams_status().await.expect("known");
    assert_eq!((status.position, status.end), (Position(6), Position(6)));
    let before = a.faulty.calls().lookup;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(a.faulty.calls().lookup, before);
}

/// Goal: with virtual streams off, commits cause no reads at all.
#[tokio::test(start_paused = true)]
async fn cost_nothing_while_they_are_off() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.append("cart-1", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = a.faulty.calls().total();
    a.append("cart-1", 100).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(a.faulty.calls().total(), before);
}

/// Goal: a store that exists is looked at from its beginning, and tells how far it is.
#[tokio::test(start_paused = true)]
async fn of_a_store_that_exists_are_made_from_its_events() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    for _ in 0..25 {
        a.append_together("cart-1", 1_000).await;
    }
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    let mut steps = Vec::new();
    let status = a
        .store
        .index_virtual_streams(|status| steps.push(status.position.0));
    let status = status.await.expect("made");
    assert_eq!(
        (status.position, status.end),
        (Position(25_000), Position(25_000))
    );
    assert!(steps.len() >= 2 && steps.is_sorted(), "{steps:?}");
    let last = ReadStream::backwards(stream("$ce-cart")).limit(1);
    let page = a.store.read_stream(last).await.expect("readable");
    assert_eq!(page.last_revision, Revision(24_999));
}

/// Goal: a reader does not wait for ever while the database is away for whoever writes the entries.
#[tokio::test(start_paused = true)]
async fn that_are_not_up_to_date_are_unavailable_after_a_while() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    a.append("cart-1", 1).await;
    a.store
        .read_whole_stream("$ce-cart")
        .await
        .expect("readable");
    world.refuse_entries(true);
    a.append("cart-1", 1).await;
    let late = a
        .store
        .read_whole_stream("$ce-cart")
        .await
        .expect_err("late");
    assert!(matches!(late.kind(), ErrorKind::Unavailable(_)), "{late}");
    assert!(late.to_string().contains("up to position 1"), "{late}");
    world.refuse_entries(false);
    let found = a
        .store
        .read_whole_stream("$ce-cart")
        .await
        .expect("readable");
    assert_eq!(found.len(), 2);
}

/// Goal: readers do not wait for a log that has just begun to be looked at; they are told how far it is.
#[tokio::test(start_paused = true)]
async fn that_are_far_behind_are_unavailable_at_once() {
    let world = World::new(1);
    let few = VirtualStreamsConfig {
        backlog_max: 2_000,
        ..VirtualStreamsConfig::default()
    };
    let config = Config {
        virtual_streams: few,
        ..Config::default()
    };
    let a = process(&world, config);
    for _ in 0..10 {
        a.append_together("cart-1", 1_000).await;
    }
    world.refuse_entries(true);
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    let before = tokio::time::Instant::now();
    for _ in 0..3 {
        let far = a.store.read_whole_stream("$ce-cart").await;
        let far = far.expect_err("far behind");
        assert!(far.is_retryable(), "{far}");
        assert!(far.to_string().contains("its end was 10000"), "{far}");
    }
    assert!(before.elapsed() < Duration::from_secs(1));
    world.refuse_entries(false);
    a.store.index_virtual_streams(drop).await.expect("written");
    let found = a.store.read_whole_stream("$ce-cart").await;
    assert_eq!(found.expect("readable").len(), 10_000);
}

/// Goal: a subscriber outlives a time in which entries cannot be written, and misses nothing.
#[tokio::test(start_paused = true)]
async fn subscribers_are_patient() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    let mut subscription = a.subscribe_stream("$ce-cart", SubscribeFrom::Start).await;
    until_caught_up(&mut subscription).await;
    world.refuse_entries(true);
    a.append("cart-1", 3).await;
    let waiting = tokio::time::timeout(Duration::from_secs(40), subscription.next());
    assert!(waiting.await.is_err(), "nothing can be told yet");
    world.refuse_entries(false);
    assert_eq!(positions(&mut subscription, 3).await, [1, 2, 3]);
}

/// Goal: subscribers are told when the history changes, and when virtual streams or the store end.
#[tokio::test(start_paused = true)]
async fn subscribers_are_told_of_ends() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    a.append("cart-1", 5).await;
    let mut live = a.subscribe_stream("$ce-cart", SubscribeFrom::Start).await;
    let mut catching_up = a.subscribe_stream("$ce-cart", SubscribeFrom::Start).await;
    until_caught_up(&mut live).await;
    world.lose_newest(LogId(0), 2);
    a.faulty.begin_history();
    for subscription in [&mut live, &mut catching_up] {
        let error = next(subscription).await.expect_err("ended");
        assert!(
            matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
            "{error}"
        );
        assert!(subscription.next().await.is_none());
    }
    let mut live = a.subscribe_stream("$ce-cart", SubscribeFrom::End).await;
    until_caught_up(&mut live).await;
    a.store
        .switch_virtual_streams(false)
        .await
        .expect("switched");
    a.append("cart-1", 1).await;
    let error = next(&mut live).await.expect_err("ended");
    assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    let mut live = a.subscribe_stream("$ce-cart", SubscribeFrom::End).await;
    until_caught_up(&mut live).await;
    a.store.shutdown().await.expect("shut down");
    let error = next(&mut live).await.expect_err("ended");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
}

/// Goal: entries that were made of events which a fail-over has lost are refused, and what is remembered is forgotten.
#[tokio::test(start_paused = true)]
async fn entries_of_lost_events_are_not_written() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    let b = process(&world, Config::default());
    a.store
        .switch_virtual_streams(true)
        .await
        .expect("switched");
    a.append("cart-1", 4).await;
    assert_eq!(
        b.store
            .read_whole_stream("$ce-cart")
            .await
            .expect("readable")
            .len(),
        4
    );
    // Both know that the log was looked at up to 4.
    assert_eq!(
        a.store
            .read_whole_stream("$ce-cart")
            .await
            .expect("readable")
            .len(),
        4
    );
    world.lose_newest(LogId(0), 3);
    a.faulty.begin_history();
    b.faulty.begin_history();
    b.append("show-1", 1).await;
    b.append("cart-2", 1).await;
    for process in [&a, &b] {
        let found = process
            .store
            .read_whole_stream("$ce-cart")
            .await
            .expect("readable");
        let found: Vec<&[u8]> = found.iter().map(|link| &link.data[..]).collect();
        assert_eq!(found, [&b"0@cart-1"[..], b"0@cart-2"]);
    }
}
