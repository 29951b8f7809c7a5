//! What goes wrong in a projection: the author's errors, and those of a target.

use std::error::Error as StdError;
use std::fmt;

use gesta_core::Checkpoint;

use crate::state::State;

/// Longest text of an error that is stored or shown, in bytes.
pub const ERROR_BYTES_MAX: usize = 2_048;

/// Cuts a text to [`ERROR_BYTES_MAX`].
pub(crate) fn cut(mut text: String) -> String {
    // PostgreSQL has no text with it.
    text.retain(|character| character != '\0');
    text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
    text
}

/// The error of an author's code: an event that cannot be read, a rule that it breaks, a statement that failed. Any
/// error becomes one by `?`. Its text is stored and shown, so it must not hold payload.
pub struct ApplyError(Box<dyn StdError + Send + Sync>);

impl ApplyError {
    /// Makes an error of a text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    /// Returns the error that the author's code returned.
    #[must_use]
    pub fn cause(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for ApplyError {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Debug for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ApplyError {
    /// Writes the error and its causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// What an error of a target means for the projection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetErrorKind {
    /// The target is away, full, read-only or busy, or the transaction lost to another one: connection errors, SQLSTATE
    /// 40001, 40P01, 53xxx, 55P03, 57xxx and their like. The same may succeed later. It is tried again for ever.
    Away,
    /// A commit was sent and its answer was lost. Only a new session tells whether it was done.
    InDoubt,
    /// The values were refused, or a statement is wrong: SQLSTATE 22xxx, 23xxx and the rest. The same fails again.
    Refused,
    /// The fence did not hold: another process owns the projection now, or it was paused, reset or retired.
    Lost,
    /// The target cannot be used by this program: its tables are of a newer version, or rights are missing.
    Unusable,
}

/// An error of a target.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct TargetError {
    kind: TargetErrorKind,
    text: String,
}

impl TargetError {
    /// Makes an error. The text is for people and holds no payload.
    #[must_use]
    pub fn new(kind: TargetErrorKind, text: impl Into<String>) -> Self {
        let text = cut(text.into());
        Self { kind, text }
    }

    /// Makes the error of a fence that did not hold.
    #[must_use]
    pub fn lost() -> Self {
        Self::new(
            TargetErrorKind::Lost,
            "another process owns the projection, or it was paused or reset",
        )
    }

    /// Returns what the error means for the projection.
    #[must_use]
    pub fn kind(&self) -> TargetErrorKind {
        self.kind
    }
}

/// Makes the error of tables in a target that are of an earlier version than those of this program.
#[must_use]
pub fn older_tables(found: impl fmt::Display, needed: impl fmt::Display) -> TargetError {
    TargetError::new(
        TargetErrorKind::Unusable,
        format!(
            "the tables of projections have version {found}, older than {needed}, which this program needs: a program \
             that runs projections brings them to it when it starts, built with this version of Gesta, and so does \
             gesta index run"
        ),
    )
}

/// An error of the interface of projections.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A definition or a request breaks a rule; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The definition of a version differs from the one that its rows were made with.
    #[error(
        "projection {name} is registered as version {version} with another filter or other columns: raise its \
         version (VERSION, or Index::version)"
    )]
    Changed {
        /// Name of the projection.
        name: String,
        /// Its version.
        version: u32,
    },
    /// There is no such projection.
    #[error("there is no projection {0}")]
    NotFound(String),
    /// The projection did not come so far in the time given.
    #[error(
        "projection {name} is {events} events behind the checkpoint after waiting for {waited:?}"
    )]
    TimedOut {
        /// Name of the projection.
        name: String,
        /// Positions of the log between the projection and the checkpoint.
        events: u64,
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// The projection is not running, so that waiting for it is in vain.
    #[error("projection {name} is {state}{}", reason(.why.as_deref()))]
    NotRunning {
        /// Name of the projection.
        name: String,
        /// Its state.
        state: State,
        /// Why it stopped.
        why: Option<String>,
    },
    /// What was ordered was not done in the time given. It stays ordered, and is done by the process that runs the
    /// version later.
    #[error("projection {name}: {why}")]
    Waits {
        /// Name and version of the projection.
        name: String,
        /// Why it was not done.
        why: String,
    },
    /// The projection was reset while it was waited for: what it answers now is of an earlier place.
    #[error("projection {0} was reset while it was waited for")]
    Reset(String),
    /// A projection waited for itself, or for another one, within `apply`: that would wait for ever.
    #[error("wait_for must not be called while events are applied")]
    WaitsInApply,
    /// The store does not answer, or refuses the request.
    #[error(transparent)]
    Store(#[from] gesta_core::Error),
    /// The target does not answer, or refuses the request.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// Makes the error of a checkpoint that cannot be compared with those of a projection.
pub(crate) fn other_store(checkpoint: &Checkpoint) -> Error {
    Error::Invalid(format!(
        "checkpoint {checkpoint} is not of the events of this store as it is now"
    ))
}

fn reason(why: Option<&str>) -> String {
    why.map(|why| format!(": {why}")).unwrap_or_default()
}
