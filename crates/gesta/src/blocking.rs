//! Runs work that blocks.

use gesta_core::{Error, Result};

/// Runs blocking work on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(Error::unavailable("the database was not opened").caused_by(error))
        })
}
