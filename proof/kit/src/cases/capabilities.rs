//! What the store says of itself, and in what it differs from the others.

use crate::factory::StoreFactory;
use crate::support::*;

/// Goal: an open store says that appends can succeed, a closed one that they cannot.
pub async fn readiness_is_that_of_appends(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    within("ready", store.ready()).await.expect("open");
    append(store.as_ref(), "a", Any, events(1)).await;
    within("ready", store.ready()).await.expect("still open");
    within("shutdown", store.shutdown()).await.expect("closed");
    assert_kind!(
        within("ready", store.ready()).await,
        ErrorKind::Unavailable(_)
    );
}

/// Goal: differences between backends are declared and printed, and the factory offers what the store declares.
pub async fn are_declared(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let info = store.info().await.expect("info");
    let can = info.capabilities;
    let word = |has| if has { "yes" } else { "no" };
    say(&format!(
        "CAPABILITIES of {}: backend {} {}, logs {}, durability {}, persistent {}, shared {}, several logs {}, batches in flight {}",
        factory.name(),
        info.backend,
        info.engine,
        info.logs,
        info.durability.name(),
        word(can.persistent),
        word(can.shared),
        word(can.several_logs),
        can.batches_in_flight_max,
    ));
    assert_eq!(info.logs, factory.logs());
    assert!(info.logs == 1 || can.several_logs);
    assert!(can.batches_in_flight_max >= 1);
    assert_eq!(
        info.idempotency,
        store.info().await.expect("info").idempotency
    );
    if can.shared {
        assert!(
            factory.second(&store).await.is_some(),
            "declared, but not tested"
        );
    }
    if can.persistent {
        assert!(
            factory.reopen(&store).await.is_some(),
            "declared, but not tested"
        );
    }
}
