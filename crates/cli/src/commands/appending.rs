//! Appends that are sent again when their answer is lost.

use std::time::Duration;

use gesta_core::{Append, Appended, EventStore};

use super::waiting::told_if_slow;

/// How often an append is sent at most.
const TRIES: u32 = 5;

/// Appends events, and sends the append again with the same ids after an error that allows it, such as a lost answer.
pub(super) async fn append_surely(
    store: &dyn EventStore,
    request: &Append,
) -> gesta_core::Result<Appended> {
    let mut tries = 1;
    loop {
        match told_if_slow(store.append(request.clone())).await {
            Err(error) if error.is_retryable() && tries < TRIES => {
                tokio::time::sleep(Duration::from_millis(200 * u64::from(tries))).await;
                tries += 1;
            }
            answer => return answer,
        }
    }
}
