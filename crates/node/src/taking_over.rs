//! Reads what the owner before has appended to each log that this node takes over, before the first call comes.

use std::sync::Arc;

use gesta_cluster::Placement;
use gesta_core::LogId;
use gesta_store::Store;
use tokio::sync::watch;

/// Prepares for each log when the placement begins to say that it is this node's, until there are no more changes.
pub(crate) async fn follow(mut placement: watch::Receiver<Arc<Placement>>, store: Arc<Store>) {
    let mut before: Vec<LogId> = Vec::new();
    loop {
        let now = Arc::clone(&placement.borrow_and_update());
        let mine: Vec<LogId> = now.mine().collect();
        for log in mine.iter().filter(|log| !before.contains(log)) {
            // It has begun; nobody waits for it.
            drop(store.prepare(*log));
        }
        before = mine;
        if placement.changed().await.is_err() {
            return;
        }
    }
}
