//! Why something is not done.

use gesta_core::{ErrorKind, Result};

/// Makes the error of what is refused, with the reason for people.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(ErrorKind::Unsupported(why.into()).into())
}
