//! Code of the user, run so that its panic ends one command, one load or one snapshot, and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gesta_core::Error;

/// Code of the user has panicked. What it said is on standard error, by the panic hook; it may quote data, so it is not
/// repeated to callers.
#[derive(Debug, thiserror::Error)]
#[error("{0} of the entity has panicked")]
pub(crate) struct Panicked(&'static str);

impl From<Panicked> for Error {
    /// The program cannot use the entity, as if its data were damaged.
    fn from(panicked: Panicked) -> Self {
        Error::corrupt(panicked.to_string())
    }
}

/// Runs code of the user. `what` names it for people: `decide`, `the codec`, ….
pub(crate) fn guarded<T>(
    what: &'static str,
    run: impl FnOnce() -> T,
) -> std::result::Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| Panicked(what))
}
