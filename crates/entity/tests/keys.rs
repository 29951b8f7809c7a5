//! Idempotency keys on an embedded store: what is told of a command that comes again, what is forgotten and when, and
//! what the first versions have stored.
//!
//! What happened: another command with a known key got the first reply, silently. Keys had no bound, a load learnt all
//! keys of history, each snapshot copied all of them on the command path, and once they took more than an event may
//! hold, no snapshot was written any more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]
#![allow(dead_code, reason = "the account can do more than is asked of it here")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::limits::EVENT_BYTES_MAX;
use gesta_core::{EventData, EventId, EventStoreExt, EventType, ExpectedRevision, OwnerStore};
use gesta_entity::{
    Builder, Config, Context, Decider, Done, Entities, EntityType, Error, JsonEvents, Request,
    Snapshots,
};
use serde::{Deserialize, Serialize};
use support::{Account, Command, Insufficient, config, start, store};

type Outcome = Result<Done<u64>, Error<Insufficient>>;

async fn deposit(accounts: &Entities<Account>, amount: u64, key: &str) -> Outcome {
    let request = Request::new(Command::Deposit(amount)).key(key);
    accounts.submit("1", request).await
}

fn is_reused(outcome: &Outcome, key: &str) -> bool {
    matches!(outcome, Err(Error::KeyReused(reused)) if reused == key)
}

/// Goal: another command with a known key is an error of its own: while the first is in flight, from memory, from
/// events, and from a snapshot.
#[tokio::test]
async fn another_command_with_the_same_key_is_told_so() {
    let store = store().await;
    let accounts = start(&store, config());
    let first = accounts.submit("1", Request::new(Command::Deposit(5)).key("a"));
    let other = accounts.submit("1", Request::new(Command::Withdraw(5)).key("a"));
    assert_eq!(first.await.unwrap().reply, 5);
    assert!(is_reused(&other.await, "a"));
    for round in 0..3 {
        // In the last round the key comes out of a snapshot.
        let accounts = start(&store, config());
        assert!(is_reused(&deposit(&accounts, 6, "a").await, "a"), "{round}");
        let again = deposit(&accounts, 5, "a").await.unwrap();
        assert_eq!((again.reply, again.repeated), (5, true));
        for _ in 0..8 {
            accounts.execute("1", Command::Deposit(1)).await.unwrap();
        }
        accounts.shutdown().await;
        let stats = accounts.stats();
        assert_eq!((stats.keys_reused, stats.repeated), (1, 1));
        assert!(
            (stats.keys, stats.key_bytes) == (0, 0),
            "nothing is left: {stats:?}"
        );
    }
    let accounts = start(&store, config());
    let balance = accounts.read("1", |account| account.balance).await.unwrap();
    assert_eq!(balance, 29);
}

/// Goal: an entity remembers as many keys as it may, the youngest, also when it is loaded; the runtime tells.
#[tokio::test]
async fn keys_are_bounded_by_count_and_by_bytes() {
    let store = store().await;
    let by_count = Config {
        entity_keys_max: 20,
        entity_commands_max: 1,
        ..config()
    };
    let by_bytes = Config {
        // Each has a key of 6 bytes and a reply of 2 or 3.
        entity_key_bytes_max: 20 * (6 + 3 + 128),
        ..config()
    };
    for (round, bounded) in [(0, by_count), (1, by_bytes)] {
        let accounts = start(&store, bounded.clone());
        for n in 0..99 {
            deposit(&accounts, 1, &format!("{round}-{n:04}"))
                .await
                .unwrap();
        }
        let stats = accounts.stats();
        assert!((19..=20).contains(&stats.keys), "{stats:?}");
        assert!(stats.key_bytes <= 20 * (6 + 3 + 128), "{stats:?}");
        assert!(stats.keys_forgotten_early >= 79, "{stats:?}");
        accounts.shutdown().await;

        // From events alone: a newer version has no use for the snapshots.
        let newer = support::account_type().snapshots(Snapshots::json(2));
        let owner = Arc::clone(&store) as Arc<dyn OwnerStore>;
        let accounts = Builder::new().config(bounded).start(owner, newer);
        let young = deposit(&accounts, 1, &format!("{round}-0098"))
            .await
            .unwrap();
        let old = deposit(&accounts, 1, &format!("{round}-0001"))
            .await
            .unwrap();
        assert_eq!((young.repeated, old.repeated), (true, false));
        assert!(accounts.stats().keys <= 20, "{:?}", accounts.stats());
        accounts.shutdown().await;
    }
}

/// What happened: a caller's key that began as those do that nodes make was forgotten after ten minutes. Now such a key
/// is refused, and one that is only like them is a key like any other.
#[tokio::test]
async fn a_key_like_those_that_nodes_make_is_refused() {
    let store = store().await;
    let accounts = start(&store, config());
    let refused = deposit(&accounts, 1, "$made-1").await;
    assert!(
        matches!(&refused, Err(Error::Failed(error)) if error.to_string().contains("$made-")),
        "{refused:?}"
    );
    assert!(!deposit(&accounts, 1, "$made").await.unwrap().repeated);
    assert!(deposit(&accounts, 1, "$made").await.unwrap().repeated);
    assert_eq!(accounts.stats().keys, 1);
}

/// Goal: what is past its time is forgotten when an entity is loaded, and does not count as forgotten early.
#[tokio::test]
async fn keys_past_their_time_are_forgotten_on_load() {
    let store = store().await;
    let accounts = start(&store, config());
    for n in 0..25 {
        deposit(&accounts, 1, &format!("key-{n}")).await.unwrap();
    }
    accounts.shutdown().await;
    let short = Config {
        keys_kept_for: Duration::ZERO,
        ..config()
    };
    let accounts = start(&store, short);
    accounts.read("1", |account| account.balance).await.unwrap();
    let stats = accounts.stats();
    assert_eq!((stats.keys, stats.keys_forgotten_early), (0, 0));
    assert!(!deposit(&accounts, 1, "key-24").await.unwrap().repeated);
}

/// Goal: what the first versions have stored, without fingerprints, is read as it was then: their keys give the first
/// reply, whatever the command. The bytes are those of these versions; the time is over for none of them.
#[tokio::test]
async fn keys_without_a_fingerprint_are_read() {
    let store = store().await;
    let last = EventId::random();
    let deposited = |metadata: &'static str| EventData {
        metadata: metadata.into(),
        ..EventData::json(EventType::new("deposited").unwrap(), r#"{"amount":5}"#)
    };
    let events = vec![
        deposited(r#"{"$idempotencyKey":"order-1","$reply":5}"#),
        deposited(r#"{"$idempotencyKey":"order-2","$reply":10}"#).with_id(last),
        deposited(r#"{"$idempotencyKey":"order-3","$reply":15}"#),
    ];
    let appended = store.append_to("account-1", ExpectedRevision::NoStream, events);
    appended.await.unwrap();
    let header = format!(
        r#"{{"version":1,"revision":1,"event_id":"{}","keys":[{{"key":"order-1","reply":5,"revision":0,"at":1700000000000000}},{{"key":"order-2","reply":10,"revision":null,"at":1700000000000001}}]}}"#,
        last.0
    );
    let state = r#"{"balance":10,"changes":2}"#;
    let snapshot = EventData {
        metadata: header.into(),
        ..EventData::json(EventType::new("$snapshot").unwrap(), state)
    };
    let appended = store.append_to("$snapshot-account-1", ExpectedRevision::Any, vec![snapshot]);
    appended.await.unwrap();

    let accounts = start(
        &store,
        Config {
            keys_kept_for: Duration::from_secs(100 * 366 * 24 * 3_600),
            ..config()
        },
    );
    for (key, reply) in [("order-1", 5), ("order-2", 10), ("order-3", 15)] {
        let again = deposit(&accounts, 77, key).await.unwrap();
        assert_eq!((again.reply, again.repeated), (reply, true));
    }
    assert_eq!(deposit(&accounts, 1, "order-4").await.unwrap().reply, 16);
    assert!(is_reused(
        &deposit(&accounts, 2, "order-4").await,
        "order-4"
    ));
    let stats = accounts.stats();
    assert_eq!((stats.snapshots_ignored, stats.loaded_events), (0, 1));
}

/// An entity whose replies are so long that a few of them fill a snapshot.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Long {
    count: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Grown {
    #[serde(rename = "grown")]
    Grown,
}

const REPLY_BYTES: usize = 1024 * 1024;

impl Decider for Long {
    type Command = u64;
    type Event = Grown;
    type Reply = String;
    type Rejection = ();

    fn decide(&self, _: &u64, _: &Context<'_>) -> Result<Vec<Grown>, ()> {
        Ok(vec![Grown::Grown])
    }

    fn evolve(&mut self, _: &Grown) {
        self.count += 1;
    }

    fn reply(&self, command: &u64) -> String {
        format!("{command}{}", "x".repeat(REPLY_BYTES))
    }
}

/// Goal: a snapshot that would be larger than an event may be leaves the oldest keys out, says so, and is written.
#[tokio::test]
async fn a_snapshot_too_large_leaves_the_oldest_keys_out() {
    let store = store().await;
    let start = || {
        let kind = EntityType::<Long>::new("long", JsonEvents::new()).unwrap();
        let kind = kind.snapshots(Snapshots::json(1).every(20));
        let config = Config {
            entity_key_bytes_max: usize::MAX,
            ..config()
        };
        let owner = Arc::clone(&store) as Arc<dyn OwnerStore>;
        Builder::new()
            .config(config)
            .start(owner, kind.idempotent_replies())
    };
    let entities = start();
    for n in 0..20 {
        let request = Request::new(n).key(format!("key-{n}"));
        assert!(!entities.submit("1", request).await.unwrap().repeated);
    }
    entities.shutdown().await;
    let stats = entities.stats();
    assert_eq!((stats.snapshots_written, stats.snapshots_left_out), (1, 0));
    let fitting = (EVENT_BYTES_MAX / REPLY_BYTES) as u64 - 1;
    assert_eq!(stats.keys_left_out, 20 - fitting);

    let entities = start();
    for (n, known) in [(19, true), (20 - fitting, true), (19 - fitting, false)] {
        let request = Request::new(n).key(format!("key-{n}"));
        let done = entities.submit("1", request).await.unwrap();
        assert_eq!(done.repeated, known, "key-{n}");
    }
    assert_eq!(entities.stats().snapshots_ignored, 0);
}
