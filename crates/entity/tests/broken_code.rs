//! Code of the user that panics: codec, tags, replies, snapshots, the first state.
//!
//! What happened: only `decide`, `evolve` and `reply` were run with care. A panic in a codec, in the tags or in a
//! reply's form ended the shard with all its entities, one in the form of a snapshot ended all snapshots. What holds
//! now: a panic ends the command, the load or the snapshot that it came from; entities beside it in the same shard go
//! on, and so does the entity itself, unless its events cannot be folded.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]

use std::cell::Cell;
use std::sync::Arc;

use gesta_core::{ContentType, OwnerStore, Tag};
use gesta_entity::{
    Builder, CodecError, Config, Context, Decider, Encoded, Entities, EntityType, Error,
    EventCodec, JsonEvents, Request, Snapshots, Stored,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

// Amounts at which code of the user panics.
const ENCODE: u64 = 101;
const DECODE: u64 = 102;
const TAGS: u64 = 103;
const WRITE_REPLY: u64 = 104;
const READ_REPLY: u64 = 105;
const COPY_STATE: u64 = 106;
const WRITE_SNAPSHOT: u64 = 107;
const READ_SNAPSHOT: u64 = 108;
const FOLD_LOADED: u64 = 109;

fn panic_at(amount: u64, planted: u64) {
    assert_ne!(amount, planted, "planted");
}

// Each test has its own thread, and everything of it runs there.
thread_local! {
    /// While this is true, no state can be begun.
    static NO_FIRST_STATE: Cell<bool> = const { Cell::new(false) };
    /// While this is true, events can be folded.
    static FOLDS: Cell<bool> = const { Cell::new(true) };
}

#[derive(Debug, Serialize, Deserialize)]
struct Fragile {
    last: u64,
    count: u64,
}

impl Default for Fragile {
    fn default() -> Self {
        assert!(!NO_FIRST_STATE.get(), "planted");
        Self { last: 0, count: 0 }
    }
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        panic_at(self.last, COPY_STATE);
        Self { ..*self }
    }
}

#[derive(Debug, Clone, Copy)]
struct Reply(u64);

impl Serialize for Reply {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        panic_at(self.0, WRITE_REPLY);
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Reply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let last = u64::deserialize(deserializer)?;
        panic_at(last, READ_REPLY);
        Ok(Self(last))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Event {
    #[serde(rename = "added")]
    Added { amount: u64 },
}

/// The commands are the amounts to add.
impl Decider for Fragile {
    type Command = u64;
    type Event = Event;
    type Reply = Reply;
    type Rejection = ();

    fn decide(&self, amount: &u64, _: &Context<'_>) -> Result<Vec<Event>, ()> {
        Ok(vec![Event::Added { amount: *amount }])
    }

    fn evolve(&mut self, event: &Event) {
        let Event::Added { amount } = *event;
        if !FOLDS.get() {
            panic_at(amount, FOLD_LOADED);
        }
        *self = Self {
            last: amount,
            count: self.count + 1,
        };
    }

    fn reply(&self, _: &u64) -> Reply {
        Reply(self.last)
    }
}

struct Codec(JsonEvents<Event>);

impl EventCodec<Event> for Codec {
    fn encode(&self, event: &Event) -> Result<Encoded, CodecError> {
        let Event::Added { amount } = *event;
        panic_at(amount, ENCODE);
        self.0.encode(event)
    }

    fn decode(&self, stored: Stored<'_>) -> Result<Event, CodecError> {
        let event = self.0.decode(stored)?;
        let Event::Added { amount } = event;
        panic_at(amount, DECODE);
        Ok(event)
    }
}

fn snapshots() -> Snapshots<Fragile> {
    let encode = |state: &Fragile| {
        panic_at(state.last, WRITE_SNAPSHOT);
        serde_json::to_vec(state).map_err(|error| error.to_string())
    };
    let decode = |bytes: &[u8]| {
        let state: Fragile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        panic_at(state.last, READ_SNAPSHOT);
        Ok(state)
    };
    Snapshots::with(1, ContentType::Json, encode, decode).every(1)
}

async fn store() -> Arc<gesta::DatabaseStore> {
    let opened = gesta::open_database("sqlite::memory:");
    opened.await.unwrap()
}

/// All entities in one shard.
fn start(
    store: &Arc<gesta::DatabaseStore>,
    snapshots: Option<Snapshots<Fragile>>,
) -> Entities<Fragile> {
    let tags = |_: &str, event: &Event| {
        let Event::Added { amount } = *event;
        panic_at(amount, TAGS);
        vec![Tag::new("added").unwrap()]
    };
    let mut kind = EntityType::new("fragile", Codec(JsonEvents::new())).unwrap();
    kind = kind.tags(tags).idempotent_replies();
    if let Some(snapshots) = snapshots {
        kind = kind.snapshots(snapshots);
    }
    let config = Config {
        shards: 1,
        ..Config::default()
    };
    let store = Arc::clone(store) as Arc<dyn OwnerStore>;
    Builder::new().config(config).start(store, kind)
}

/// Sends a command between two of another entity; all three are handed over at once.
async fn beside_another(
    entities: &Entities<Fragile>,
    id: &str,
    request: Request<u64>,
) -> Result<u64, Error<()>> {
    let before = entities.submit("another", Request::new(1));
    let asked = entities.submit(id, request);
    let after = entities.submit("another", Request::new(1));
    before.await.expect("the entity beside it goes on");
    after.await.expect("the entity beside it goes on");
    asked.await.map(|done| done.reply.0)
}

/// Goal: the command whose event or reply has no form fails, and nothing else.
#[tokio::test]
async fn a_panic_in_a_form_ends_its_command() {
    let entities = start(&store().await, None);
    for amount in [ENCODE, TAGS, WRITE_REPLY] {
        entities.execute("1", 1).await.unwrap();
        let request = Request::new(amount).key(format!("key-{amount}"));
        let error = beside_another(&entities, "1", request).await.unwrap_err();
        assert!(matches!(&error, Error::Failed(_)), "{amount}: {error:?}");
        assert!(error.to_string().contains("has panicked"), "{error}");
        let counted = entities.read("1", |state| state.count).await.unwrap();
        let done = entities.submit("1", Request::new(7)).await.unwrap();
        assert_eq!(done.revision.unwrap().0, counted, "nothing else was stored");
    }
    let request = || Request::new(READ_REPLY).key("read");
    let first = beside_another(&entities, "1", request()).await;
    assert_eq!(first.unwrap(), READ_REPLY);
    let again = beside_another(&entities, "1", request()).await;
    assert!(matches!(&again, Err(Error::Failed(_))), "{again:?}");
    assert_eq!(entities.execute("1", 1).await.unwrap().0, 1);
}

/// Goal: an entity whose events cannot be folded is failed, alone, and it is said which event.
#[tokio::test]
async fn an_entity_that_cannot_be_folded_is_failed_alone() {
    let store = store().await;
    let entities = start(&store, None);
    for id in ["decode", "evolve"] {
        entities.execute(id, 1).await.unwrap();
    }
    entities.execute("decode", DECODE).await.unwrap();
    entities.execute("evolve", FOLD_LOADED).await.unwrap();
    entities.shutdown().await;
    FOLDS.set(false);
    let entities = start(&store, None);
    for id in ["decode", "evolve"] {
        let asked = beside_another(&entities, id, Request::new(1)).await;
        let error = asked.unwrap_err();
        assert!(matches!(&error, Error::Failed(_)), "{error:?}");
        let named = format!("stream fragile-{id}, revision 1: ");
        assert!(error.to_string().contains(&named), "{error}");
    }
    assert_eq!(entities.stats().loads_failed, 2);
    FOLDS.set(true);
    assert_eq!(entities.execute("evolve", 1).await.unwrap().0, 1);
}

/// Goal: a snapshot that cannot be taken, written or read is left out, and the next one is taken.
#[tokio::test]
async fn a_panic_in_a_snapshot_ends_that_snapshot() {
    let store = store().await;
    let entities = start(&store, Some(snapshots()));
    for (id, amount) in [("copy", COPY_STATE), ("write", WRITE_SNAPSHOT)] {
        assert_eq!(entities.execute(id, amount).await.unwrap().0, amount);
        assert_eq!(entities.execute(id, 1).await.unwrap().0, 1);
    }
    entities.execute("read", READ_SNAPSHOT).await.unwrap();
    entities.shutdown().await;
    let stats = entities.stats();
    assert_eq!((stats.snapshots_left_out, stats.snapshots_written), (2, 3));

    let entities = start(&store, Some(snapshots()));
    let asked = beside_another(&entities, "read", Request::new(1)).await;
    assert_eq!(asked.unwrap(), 1);
    assert_eq!(entities.stats().snapshots_ignored, 1);
    let counted = entities.read("read", |state| state.count).await.unwrap();
    assert_eq!(counted, 2);
}

/// Goal: an entity that no state can be begun for is refused; the others of its shard go on, and so does it later.
#[tokio::test]
async fn a_panic_in_the_first_state_ends_no_shard() {
    let entities = start(&store().await, None);
    entities.execute("another", 1).await.unwrap();
    NO_FIRST_STATE.set(true);
    let asked = entities.execute("1", 1).await;
    let other = entities.execute("another", 1).await;
    NO_FIRST_STATE.set(false);
    assert!(matches!(&asked, Err(Error::OutcomeUnknown(_))), "{asked:?}");
    assert_eq!(other.unwrap().0, 1);
    assert_eq!(entities.execute("1", 1).await.unwrap().0, 1);
    let stats = entities.stats();
    assert_eq!((stats.active, stats.loading), (2, 0));
}
