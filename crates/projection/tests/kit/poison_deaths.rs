//! Events that end their process, or that cannot even be keyed, read or written: found, and put aside; and innocent
//! ones beside them.

use std::cmp;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gesta_core::{EventStoreExt, Filter, LogId, RecordedEvent};
use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{
    ApplyError, Cell, Config, Key, Kind, OnPoison, Order, OwnedValue, Phase, State, Target as _,
    Value, View, columns,
};

use super::fixtures::{Balance, Balances, of_category};
use super::world::{World, id, parking, quick, until_phase, until_so};
use crate::flavour::{TAKES_ZERO, Target};

/// What a process does when it meets an odd event.
type Act = Arc<dyn Fn(&Faulty<Target>) + Send + Sync>;

/// A view that acts as it is told when it applies an event of type `odd`, or when it is asked for the key of one of
/// type `odd-key`.
#[derive(Clone)]
struct Odd {
    faulty: Faulty<Target>,
    act: Act,
}

impl View for Odd {
    const NAME: &'static str = "odd";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        if event.event_type.as_str() == "odd-key" {
            (self.act)(&self.faulty);
        }
        Balances.key(event)
    }

    fn evolve(&self, row: &mut Option<Balance>, event: &RecordedEvent) -> Result<(), ApplyError> {
        if event.event_type.as_str() == "odd" {
            (self.act)(&self.faulty);
        }
        Balances.evolve(row, event)
    }
}

fn dies() -> Act {
    Arc::new(|faulty| faulty.kill())
}

/// Runs processes, one after the other, each until it dies; returns how many have died when it is over.
async fn deaths_until(
    world: &World,
    config: &Config,
    act: &Act,
    mut is_over: impl AsyncFnMut() -> bool,
) -> u32 {
    for deaths in 0..20 {
        let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
        let (act, of) = (Arc::clone(act), faulty.clone());
        let odd = Odd { faulty: of, act };
        let process = world
            .faulty(config.clone(), &faulty)
            .view(odd)
            .start()
            .await;
        let process = process.expect("started");
        let mut over = false;
        let ends = async || {
            over = is_over().await;
            over || faulty.is_dead()
        };
        until_so(ends, "it dies, or comes to the end").await;
        if over {
            process.shutdown().await;
            return deaths;
        }
    }
    panic!("it dies for ever");
}

/// Returns true once everything was applied, or put aside.
async fn is_whole(world: &World) -> bool {
    world.row("odd").await.checkpoint == world.head().await
}

async fn parked(world: &World) -> Vec<(u64, String)> {
    let control = world.control();
    let parked = control.parked(&id("odd", 1), None, 99).await;
    let parked = parked.expect("parked").into_iter();
    parked.map(|one| (one.position.0, one.error)).collect()
}

/// Appends twenty events of three streams, the fourteenth of which is of this type.
async fn append_with(world: &World, odd: &str) {
    for n in 0..20 {
        let event_type = if n == 13 { odd } else { "added" };
        let stream = format!("account-{}", n % 3);
        world.append(&stream, event_type, "1").await;
    }
}

/// Schedule 20: an event during which the process ends, without a word, again and again, is found and put aside; the
/// others are applied. A replay of it ends the process as well: that is found in the same way, and refused.
///
/// What happened: the replay ended every process that owned the projection, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_20_an_event_that_kills_the_process_is_put_aside() {
    let world = World::new().await;
    append_with(&world, "odd").await;
    let config = Config {
        batch_events_max: 16,
        ..parking()
    };
    let deaths = deaths_until(&world, &config, &dies(), async || is_whole(&world).await).await;
    // One in a batch of 16, one of 2, three of the event alone.
    assert_eq!(deaths, 5);
    let aside = parked(&world).await;
    let places: Vec<u64> = aside.iter().map(|(position, _)| *position).collect();
    assert_eq!(places, [14, 17, 20]);
    assert!(
        aside[0].1.contains("the process ended 3 times"),
        "{aside:?}"
    );
    let replay = Order::Replay { key: None };
    let number = world.target.command(&id("odd", 1), &replay).await;
    let number = number.expect("asked");
    let answer = async || world.target.answer(number).await.expect("an answer");
    let answered = async || answer().await.is_some();
    // One with the three events of the key, three of the event alone.
    assert_eq!(deaths_until(&world, &config, &dies(), answered).await, 4);
    let answer = answer().await.expect("answered");
    let expected =
        "0 events were applied; 1 keys stay parked: account-1: the process ended 3 times";
    assert!(answer.contains(expected), "{answer}");
    assert_eq!(parked(&world).await.len(), 3);
    // With code that is put right it is applied.
    let number = world.target.command(&id("odd", 1), &replay).await;
    let number = number.expect("asked");
    let answer = async || world.target.answer(number).await.expect("an answer");
    let answered = async || answer().await.is_some();
    let right: Act = Arc::new(|_| {});
    assert_eq!(deaths_until(&world, &config, &right, answered).await, 0);
    assert_eq!(answer().await.as_deref(), Some("3 events were applied"));
    assert_eq!(parked(&world).await, []);
}

/// What happened: each attempt was counted as a death, also one that the target had failed while the process lived on:
/// the next process condemned the event. Now only the process that takes over counts one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_the_target_fails_is_no_death() {
    let world = World::new().await;
    world.append("account-1", "odd", "1").await;
    // The first process ends, so that the second one announces the event.
    let met = Arc::new(AtomicU32::new(0));
    let act: Act = {
        let met = Arc::clone(&met);
        Arc::new(move |faulty| match met.fetch_add(1, Ordering::SeqCst) {
            0 | 6 => faulty.kill(),
            1..6 => faulty.set_away(true),
            _ => {}
        })
    };
    let first = Faulty::new(world.target.clone(), 0, Fate::None);
    for expected in [1, 7] {
        let faulty = match expected {
            1 => first.clone(),
            _ => Faulty::new(world.target.clone(), 0, Fate::None),
        };
        let (of, act) = (faulty.clone(), Arc::clone(&act));
        let odd = Odd { faulty: of, act };
        let process = world.faulty(parking(), &faulty).view(odd).start().await;
        let process = process.expect("started");
        let progress = process.progress(&id("odd", 1)).expect("it runs here");
        let is_dead = async || {
            if progress.borrow().phase == Phase::TargetAway {
                faulty.set_away(false);
            }
            faulty.is_dead()
        };
        until_so(is_dead, "it dies").await;
        assert_eq!(met.load(Ordering::SeqCst), expected);
    }
    let deaths = deaths_until(&world, &parking(), &act, async || is_whole(&world).await).await;
    assert_eq!((deaths, parked(&world).await), (0, vec![]));
}

/// What happened: with several logs the first event that was read after the deaths was condemned, whichever that was.
/// Now the attempt says which event it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_several_logs_the_right_event_is_condemned() {
    let world = World::of_logs(2).await;
    for n in 0..20 {
        world.append(&format!("account-{n}"), "added", "1").await;
    }
    let events = world.store.read_everything().await.expect("read");
    let stream_of = |log| {
        let found = events.iter().find(|event| event.log == LogId(log));
        found.expect("one of twenty").stream.as_str().to_owned()
    };
    let (first, second) = (stream_of(0), stream_of(1));
    let right: Act = Arc::new(|_| {});
    let whole = async || is_whole(&world).await;
    assert_eq!(deaths_until(&world, &parking(), &right, whole).await, 0);
    let fatal = world.append(&second, "odd", "1").await;
    // Without another event it is the first one that is read. One death before it is announced, three with it alone.
    for _ in 0..4 {
        let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
        let (of, act) = (faulty.clone(), dies());
        let odd = Odd { faulty: of, act };
        let process = world.faulty(parking(), &faulty).view(odd).start().await;
        let process = process.expect("started");
        until_so(async || faulty.is_dead(), "it dies").await;
        drop(process);
    }
    // Events of log 0 are read before those of log 1.
    world.append(&first, "added", "1").await;
    let whole = async || is_whole(&world).await;
    assert_eq!(deaths_until(&world, &parking(), &dies(), whole).await, 0);
    let parked = world.parked(&id("odd", 1)).await;
    let keys: Vec<_> = parked.iter().filter_map(|one| one.key.clone()).collect();
    assert_eq!(keys, [second]);
    assert_eq!(parked[0].log, LogId(1), "{fatal:?}");
}

/// What happened: an event that was condemned was asked for its key again, which ended the process again, for ever.
/// Now the projection stops when nobody can tell the key by which the event would be parked; it is skipped without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_whose_key_kills_the_process_is_not_parked() {
    let world = World::new().await;
    append_with(&world, "odd-key").await;
    let state = async || {
        let row = world.row("odd").await;
        row.state
    };
    let stopped = async || state().await == State::Stopped;
    let config = Config {
        deaths_max: 1,
        ..parking()
    };
    deaths_until(&world, &config, &dies(), stopped).await;
    let row = world.row("odd").await;
    let why = row.error.expect("a reason");
    assert!(why.contains("nobody can tell its key"), "{why}");
    assert_eq!((row.events, parked(&world).await), (13, vec![]));
    let control = world.control();
    control.resume(&id("odd", 1)).await.expect("resumed");
    let skip = Config {
        on_poison: OnPoison::Skip,
        ..config
    };
    deaths_until(&world, &skip, &dies(), async || is_whole(&world).await).await;
    let places: Vec<u64> = parked(&world).await.iter().map(|(at, _)| *at).collect();
    assert_eq!(places, [14]);
}

columns! {
    /// A text.
    struct Note {
        text: String,
    }
}

/// Keeps the last text of each key: the data of its events is `key:text`.
struct Notes;

fn parts(event: &RecordedEvent) -> (&str, &str) {
    let text = std::str::from_utf8(&event.data).unwrap_or_default();
    text.split_once(':').unwrap_or((text, ""))
}

impl View for Notes {
    const NAME: &'static str = "notes";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Note;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(parts(event).0.to_owned())
    }

    fn evolve(&self, row: &mut Option<Note>, event: &RecordedEvent) -> Result<(), ApplyError> {
        let text = parts(event).1.to_owned();
        *row = Some(Note { text });
        Ok(())
    }
}

/// What happened: PostgreSQL has no text with the character 0. A key with it failed the read of its row, which was
/// taken for a failure of the database and tried again for ever. Now the event is found, and put aside without its row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_or_a_row_that_the_database_cannot_keep_is_put_aside() {
    let world = World::new().await;
    let data = ["a:1", "b\0:2", "c:3\0", "a:4", "b\0:5", "c:6", "d:7"];
    for text in data {
        world.append("account-1", "added", text).await;
    }
    let process = world.started(parking(), Notes).await;
    world.applies_all(&process, "notes").await;
    let rows = "SELECT id, text FROM notes WHERE id IN ('a', 'c', 'd') ORDER BY id";
    let rows = world.database.lines(rows).await;
    let aside = world.parked(&id("notes", 1)).await;
    let aside: Vec<(u64, &str, bool)> = aside
        .iter()
        .map(|one| {
            let key = one.key.as_deref().unwrap_or_default();
            (one.position.0, key, one.error.is_empty())
        })
        .collect();
    if TAKES_ZERO {
        assert_eq!(
            (rows, aside),
            (vec!["a 4".into(), "c 6".into(), "d 7".into()], vec![])
        );
    } else {
        let expected = vec![
            (2, "b\\0", false),
            (3, "c", false),
            (5, "b\\0", true),
            (6, "c", true),
        ];
        assert_eq!((rows, aside), (vec!["a 4".into(), "d 7".into()], expected));
    }
    process.shutdown().await;
}

/// A key whose code panics for some texts: as it is hashed, cloned or compared.
#[derive(PartialEq, Eq, Debug)]
struct Touchy(String);

impl Touchy {
    fn may_not(&self, what: &str) {
        assert!(self.0 != what, "a mistake of the author");
    }
}

impl Hash for Touchy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.may_not("hash");
        self.0.hash(state);
    }
}

impl Clone for Touchy {
    fn clone(&self) -> Self {
        self.may_not("clone");
        Self(self.0.clone())
    }
}

impl PartialOrd for Touchy {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Touchy {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.may_not("order");
        self.0.cmp(&other.0)
    }
}

impl Key for Touchy {
    const KINDS: &'static [Kind] = &[Kind::Text];

    fn value(&self, _: usize) -> Value<'_> {
        Value::Text(&self.0)
    }

    fn read(stored: &mut dyn Iterator<Item = OwnedValue>) -> Result<Self, ApplyError> {
        let value = stored.next().ok_or_else(|| ApplyError::text("no key"))?;
        Ok(Self(Cell::read(value)?))
    }
}

/// As [`Notes`], with keys whose code panics.
struct TouchyNotes;

impl View for TouchyNotes {
    const NAME: &'static str = "touchy";
    const VERSION: u32 = 1;
    type Key = Touchy;
    type Row = Note;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<Touchy> {
        let key = parts(event).0;
        assert!(key != "none", "a mistake of the author");
        Some(Touchy(key.to_owned()))
    }

    fn evolve(&self, row: &mut Option<Note>, event: &RecordedEvent) -> Result<(), ApplyError> {
        Notes.evolve(row, event)
    }
}

/// What happened: a panic in the code of a key, outside of the author's functions, ended the task that folds, which was
/// begun again for ever. Now it is of an event, as each error of an author is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_key_is_of_its_event() {
    let world = World::new().await;
    for text in ["a:1", "hash:2", "clone:3", "order:4", "b:5", "a:6"] {
        world.append("account-1", "added", text).await;
    }
    let process = world.started(parking(), TouchyNotes).await;
    world.applies_all(&process, "touchy").await;
    let rows = world
        .database
        .lines("SELECT id, text FROM touchy ORDER BY id");
    // A key that cannot be compared stands alone in its batch, where it is compared with none.
    assert_eq!(rows.await, ["a 6", "b 5", "order 4"]);
    let touchy = id("touchy", 1);
    let keys = world.target.parked_keys(&touchy).await.expect("keys");
    assert_eq!(keys, ["clone", "hash"]);
    // Without a key an event cannot be parked: the projection stops.
    world.append("account-1", "added", "none:7").await;
    let stopped = until_phase(&process, &touchy, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(why.contains("its key cannot be told"), "{why}");
    process.shutdown().await;
    world.control().resume(&touchy).await.expect("resumed");
    let config = Config {
        on_poison: OnPoison::Skip,
        ..quick()
    };
    let process = world.started(config, TouchyNotes).await;
    world.applies_all(&process, "touchy").await;
    process.shutdown().await;
}
