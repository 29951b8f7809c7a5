//! Why a command has no reply.

use std::convert::Infallible;

use gesta_core::ErrorKind;

/// The reason why a command has no reply. `R` is the rejection of the entity.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error<R> {
    /// The entity has decided against the command. Nothing was stored.
    #[error("rejected")]
    Rejected(R),
    /// Another command of the entity was carried out with the same idempotency key. Nothing was stored for this
    /// command; trying again will not help.
    #[error("idempotency key {0:?} was used for another command")]
    KeyReused(String),
    /// Too many commands wait. Nothing was stored; try again later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The store does not answer, or the runtime is stopping. Nothing was stored; trying again is safe.
    #[error("{0}")]
    Unavailable(gesta_core::Error),
    /// The commit was sent and its outcome could not be learnt. Send the command again with the same idempotency key.
    #[error("{0}")]
    OutcomeUnknown(gesta_core::Error),
    /// The entity cannot be loaded or its events cannot be stored: unknown event type, corrupt data, a tombstone, an
    /// invalid id. Trying again will not help.
    #[error("{0}")]
    Failed(gesta_core::Error),
}

impl Error<Infallible> {
    /// Converts the error to a type in which rejections are possible.
    pub(crate) fn cast<R>(self) -> Error<R> {
        match self {
            Error::Rejected(never) => match never {},
            Error::KeyReused(key) => Error::KeyReused(key),
            Error::Overloaded(why) => Error::Overloaded(why),
            Error::Unavailable(error) => Error::Unavailable(error),
            Error::OutcomeUnknown(error) => Error::OutcomeUnknown(error),
            Error::Failed(error) => Error::Failed(error),
        }
    }
}

impl From<gesta_core::Error> for Error<Infallible> {
    /// Converts an error of the store to the error of the command or read that it ends.
    fn from(error: gesta_core::Error) -> Self {
        match error.kind() {
            ErrorKind::Overloaded(why) => Error::Overloaded(why.clone()),
            ErrorKind::Unavailable(_) => Error::Unavailable(error),
            ErrorKind::OutcomeUnknown(_) => Error::OutcomeUnknown(error),
            _ => Error::Failed(error),
        }
    }
}

impl<R> Error<R> {
    /// Returns whether the same command may succeed later without a change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Overloaded(_) | Error::Unavailable(_) | Error::OutcomeUnknown(_)
        )
    }
}
