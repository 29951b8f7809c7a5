//! Appends that are asked for again.

use std::time::Duration;

use gesta_core::{Append, Appended, EventStore};

/// How often an append whose answer was lost is asked for again.
const TRIES: u32 = 5;

/// Appends, asking again with the same ids when the answer was lost.
pub(super) async fn append_surely(
    store: &dyn EventStore,
    request: &Append,
) -> gesta_core::Result<Appended> {
    let mut tries = 1;
    loop {
        match store.append(request.clone()).await {
            Err(error) if error.is_retryable() && tries < TRIES => {
                tokio::time::sleep(Duration::from_millis(200 * u64::from(tries))).await;
                tries += 1;
            }
            answer => return answer,
        }
    }
}
