//! Tests tokens that expire while calls with them run.

use std::sync::Arc;

use gesta_access::{Accounts, Config as AccessConfig, NewToken, Scope};
use gesta_core::{Clock, EventStore, SystemClock, Timestamp};
use gesta_kit::support::OffsetClock;
use gesta_memory::MemoryStore;

use super::world::{World, access_config, add};
use crate::client::{config, soon};

/// In microseconds.
const HOUR: i64 = 3_600_000_000;

fn token_of_mate(expires: Option<Timestamp>) -> NewToken {
    NewToken {
        user: "mate".into(),
        label: String::new(),
        scopes: vec![Scope::Read, Scope::Admin],
        prefixes: vec![],
        expires,
    }
}

/// Goal: what runs with a token ends when the token expires, also if nothing happens in the store; what runs with
/// another token of the same user goes on.
#[tokio::test]
async fn what_runs_ends_when_its_token_expires() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    add(&accounts, "root", &["$admins"]).await;
    add(&accounts, "mate", &["$admins"]).await;
    let clock = OffsetClock::default();
    let of = AccessConfig {
        clock: Arc::new(clock.clone()),
        ..access_config()
    };
    let world = World::over(store, accounts, config(), of).await;
    world.seed("plan").await;
    world.group("plan", "g").await;
    world.group("$all", "g").await;

    let in_an_hour = SystemClock.now().0 + HOUR;
    let short = token_of_mate(Some(Timestamp(in_an_hour)));
    let short = world.authorized_by(short).await;
    let long = world.authorized_by(token_of_mate(None)).await;
    let mut running = Vec::new();
    for (target, begun) in [
        ("/streams/plan/subscribe", "event: caught_up"),
        ("/all/subscribe", "event: caught_up"),
        ("/streams/plan/groups/g/consume", "event: joined"),
        ("/all/groups/g/consume", "event: joined"),
    ] {
        let mut raw = world.say("GET", target, &short, "").await;
        raw.until(begun).await;
        running.push((target, raw));
    }
    let mut other = world.say("GET", "/streams/plan/subscribe", &long, "").await;
    other.until("event: caught_up").await;

    clock.set(2 * HOUR);
    for (target, raw) in running {
        let text = soon(raw.rest()).await;
        assert!(
            text.contains("urn:gesta:problem:unauthenticated"),
            "{target}: {text}"
        );
    }
    assert_eq!(world.status("GET", "/info", &short, "").await, 401);
    world.seed("plan").await;
    other.until(r#""revision":1"#).await;
}
