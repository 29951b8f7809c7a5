//! Tells whoever waits that a store does not answer.
//!
//! Why: a command that waits for a database looks as if it were at work. Why only for stores on a network: a file
//! answers, or fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::serve::place_of;
use crate::named_store;
use crate::output::say;

/// The time after which it is told that a store does not answer.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// Whether it was told.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// Does work that waits for an answer of the store, and tells once in the life of the process if the answer takes long.
pub(super) async fn told_if_slow<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(TOLD_AFTER, &mut work).await {
        return done;
    }
    if let Some(urls) = named_store::on_a_network()
        && !IS_TOLD.swap(true, Ordering::Relaxed)
    {
        say!(
            "{} has not answered for {} s: this waits for it; Ctrl-C ends that",
            place_of(urls),
            TOLD_AFTER.as_secs()
        );
    }
    work.await
}
