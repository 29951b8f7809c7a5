//! Runs code of the user so that its panic ends one command, one load or one snapshot, and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gesta_core::Error;

/// The error of code of the user that has panicked. The panic hook has written the message to standard error. The
/// message may quote data, so it is not repeated to callers.
#[derive(Debug, thiserror::Error)]
#[error("{0} of the entity has panicked")]
pub(crate) struct Panicked(&'static str);

impl From<Panicked> for Error {
    /// Makes a corruption error: the program cannot use the entity, as if its data were damaged.
    fn from(panicked: Panicked) -> Self {
        Error::corrupt(panicked.to_string())
    }
}

/// Runs code of the user. `what` names the code for people: `decide`, `the codec`, and so on.
pub(crate) fn guarded<T>(
    what: &'static str,
    run: impl FnOnce() -> T,
) -> std::result::Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| Panicked(what))
}
