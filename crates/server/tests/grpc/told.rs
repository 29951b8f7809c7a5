//! Tests what the log tells of gRPC calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use gesta_core::{Append, Appended, Error, EventStore, Result};
use gesta_grpc::messages::shared::Empty;
use gesta_memory::MemoryStore;
use gesta_server::Config;
use gesta_testkit::{Around, Outer};

use crate::access::{basic, world};
use crate::client::Client;
use crate::connection::soon;
use crate::logged::Logged;
use crate::requests::{APPEND, appending, bytes_of};

/// A store that takes appends, or is away.
#[derive(Default)]
struct Away {
    inner: MemoryStore,
    is_away: AtomicBool,
}

#[async_trait]
impl Around for Away {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn append(&self, append: Append) -> Result<Appended> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(Error::unavailable("the database is away"));
        }
        self.inner.append(append).await
    }
}

/// What happened: when the store was away and all clients spoke gRPC, the log said nothing. Goal: it tells that calls
/// begin to fail, once, and that the store answers again.
#[tokio::test]
async fn calls_that_fail_because_the_store_is_away_are_told_once() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Away::default()));
    let client = Client::with(Config::default(), store.clone()).await;
    let append = async || client.call(APPEND, &appending("cart-1", 1)).await.code;
    let begun = "requests fail because the store is away";
    let over = "the store answers requests again";

    assert_eq!(append().await, 0);
    store.is_away.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(append().await, 14);
    }
    let told = (logged.with(begun).len(), logged.with(over).len());
    assert_eq!(told, (1, 0), "{:?}", logged.with(""));
    assert!(logged.with(begun)[0].contains("the database is away"));
    store.is_away.store(false, Ordering::SeqCst);
    soon(async {
        while logged.with(over).is_empty() {
            assert_eq!(append().await, 0);
        }
    })
    .await;
    assert_eq!(logged.with("WARN").len(), 1, "{:?}", logged.with("WARN"));
}

/// Goal: what an operator has asked for, and what others may not ask for, is in the audit log.
#[tokio::test]
async fn operations_are_in_the_audit_log() {
    let (logged, _guard) = Logged::begin();
    let world = world().await;
    let path = |method: &str| format!("/event_store.client.operations.Operations/{method}");
    let nothing = || bytes_of(&[Empty {}]);
    let merge = path("MergeIndexes");
    assert_eq!(world.call(&merge, &basic("ops"), nothing()).await.0, 0);
    assert_eq!(world.call(&merge, &basic("user"), nothing()).await.0, 7);
    let lines = logged.with("gesta::audit");
    let is_told = |who: &str, what: &str| {
        let told = |line: &&String| line.contains(&format!("who=\"{who}\"")) && line.contains(what);
        lines.iter().any(|line| told(&line))
    };
    assert!(is_told("ops", "MergeIndexes"), "{lines:#?}");
    assert!(is_told("user", "refused"), "{lines:#?}");
}
