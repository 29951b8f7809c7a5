//! The one error of the public interface: what was tried, on what, and an answer a caller can act on.

use std::fmt;
use std::sync::Arc;

use crate::ids::{LogId, Revision, StreamId};
use crate::request::ExpectedRevision;

/// Result with the error of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller can act on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request breaks a rule; nothing was written. Correct it.
    #[error("{field} {rule}")]
    InvalidArgument {
        /// The field or parameter.
        field: String,
        /// The rule that it breaks, with the value found.
        rule: String,
    },
    /// Another writer came first; nothing was written. Reload, decide again, retry.
    #[error("stream {stream} is not as expected: expected {expected}, found {}", Actual(*.actual))]
    WrongExpectedRevision {
        /// The stream whose check failed.
        stream: StreamId,
        /// What the caller claimed.
        expected: ExpectedRevision,
        /// Its last revision; `None` if there is no such stream (never written, or deleted).
        actual: Option<Revision>,
    },
    /// There is no such stream: it never existed, or it was deleted.
    #[error("stream {0} not found")]
    StreamNotFound(StreamId),
    /// The stream was closed for ever by a tombstone.
    #[error("stream {0} has a tombstone")]
    StreamTombstoned(StreamId),
    /// The stream exists, but has no readable event of this revision.
    #[error("event {revision} of stream {stream} not found")]
    EventNotFound {
        /// The stream.
        stream: StreamId,
        /// The revision that was asked for.
        revision: Revision,
    },
    /// The checkpoint cannot be used with this store: another incarnation, or above the head. Start over.
    #[error("checkpoint cannot be used: {0}")]
    InvalidCheckpoint(String),
    /// A queue is full; nothing was written. Retry later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The store or its database does not answer; nothing was written. Retrying is safe.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// A commit was sent and its outcome could not be learnt. Retry with the same event ids.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    /// The database refused this append for what it contains; nothing was written.
    #[error("refused by the database: {0}")]
    Refused(String),
    /// Stored data cannot be read or contradicts itself.
    #[error("stored data is corrupt: {0}")]
    Corrupt(String),
    /// The store has another schema version than this program, or none.
    #[error("{0}")]
    Schema(String),
    /// Rights, settings or capabilities of the database do not allow this.
    #[error("{0}")]
    Unsupported(String),
    /// It is not known who calls, and it must be; nothing was done. Show who you are, or somebody else.
    #[error("who calls is not known: {0}")]
    Unauthenticated(String),
    /// The caller may not do this; nothing was done.
    #[error("{0}")]
    Forbidden(String),
}

struct Actual(Option<Revision>);

impl fmt::Display for Actual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(revision) => write!(f, "revision {revision}"),
            None => f.write_str("no stream"),
        }
    }
}

/// An error of an [`EventStore`](crate::EventStore): kind, context, cause.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operation.is_empty() {
            self.kind.fmt(f)
        } else {
            write!(f, "{}: {}", self.operation, self.kind)
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn std::error::Error + 'static))
    }
}

impl Error {
    /// An error of this kind, without context yet.
    #[must_use]
    pub fn new(kind: ErrorKind) -> Self {
        Self {
            kind,
            operation: "",
            source: None,
        }
    }

    /// A request that breaks a rule: `field` names the value, `rule` reads on from it.
    #[must_use]
    pub fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument {
            field: field.into(),
            rule: rule.into(),
        })
    }

    /// The store or its database does not answer; nothing was written.
    #[must_use]
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable(detail.into()))
    }

    /// A database does not have this log open: it is being moved to another database of the store, or was. For backends.
    #[must_use]
    pub fn log_closed(log: LogId) -> Self {
        let text = format!(
            "log {log} is closed in this database: it is being moved to another one, or was"
        );
        Self::unavailable(text).caused_by(LogClosed(log))
    }

    /// True for [`Error::log_closed`], whatever was added to it since.
    #[must_use]
    pub fn is_log_closed(&self) -> bool {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if error.is::<LogClosed>() {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// Stored data that cannot be read.
    #[must_use]
    pub fn corrupt(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt(detail.into()))
    }

    /// Says what was being done, for example `append`.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.operation = operation;
        self
    }

    /// Adds the cause. Causes go to logs, not to clients.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// What a caller can act on.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// True if the same request may succeed later without a change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Overloaded(_) | ErrorKind::Unavailable(_) | ErrorKind::OutcomeUnknown(_)
        )
    }
}

/// By this cause others know that a log is closed where it was looked for.
#[derive(Debug, thiserror::Error)]
#[error("log {0} is closed")]
struct LogClosed(LogId);

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_log_is_known_by_its_cause() {
        let closed = Error::log_closed(LogId(3));
        assert!(closed.is_log_closed() && closed.to_string().contains("log 3"));
        let wrapped = Error::unavailable("database 2").caused_by(closed);
        assert!(wrapped.during("read").is_log_closed());
        assert!(!Error::unavailable("away").is_log_closed());
    }

    #[test]
    fn messages_name_the_values() {
        let stream = StreamId::new("cart-1").expect("valid");
        let error = Error::new(ErrorKind::WrongExpectedRevision {
            stream,
            expected: ExpectedRevision::Exact(Revision(3)),
            actual: Some(Revision(5)),
        })
        .during("append");
        assert_eq!(
            error.to_string(),
            "append: stream cart-1 is not as expected: expected revision 3, found revision 5"
        );
    }
}
