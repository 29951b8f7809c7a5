//! The one error of the public interface: what was tried, and a kind on which a caller can act.

use std::fmt;
use std::sync::Arc;

use crate::ids::{LogId, Position, Revision, StreamId};
use crate::request::ExpectedRevision;

/// Result whose error is the [`Error`] of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Kind of an error. Each kind tells a caller what to do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request breaks a rule; nothing was written. The caller must correct the request.
    #[error("{field} {rule}")]
    InvalidArgument {
        /// Field or parameter that breaks the rule.
        field: String,
        /// Rule that the field breaks, with the value found.
        rule: String,
    },
    /// Another writer came first; nothing was written. Reload the stream, decide again, and retry.
    #[error("stream {stream} is not as expected: expected {expected}, found {}", Actual(*.actual))]
    WrongExpectedRevision {
        /// Stream that is not as expected.
        stream: StreamId,
        /// What the caller claimed about the stream.
        expected: ExpectedRevision,
        /// Last revision of the stream; `None` if there is no such stream (never written, or deleted).
        actual: Option<Revision>,
    },
    /// The events were stored in the stream before, and the stream was deleted since; nothing was written now. The same
    /// events are never stored a second time, and they cannot be read. Who wants them in the stream again sends them
    /// with new ids.
    #[error(
        "the events were stored in stream {stream} before, at position {position}, and the stream was deleted since"
    )]
    StoredAndDeleted {
        /// Stream in which the events were stored.
        stream: StreamId,
        /// Position that the first answer named; that of the first event if the others are stored no longer.
        position: Position,
    },
    /// An event passes the filter of a condition; nothing was written. Read on from the end of the last read, decide
    /// again, and retry with the new end.
    #[error("an event at position {position} of log {log} passes the filter of a condition of the append", log = log.0)]
    ConditionFailed {
        /// Log of the event.
        log: LogId,
        /// Position of the event.
        position: Position,
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
        /// Stream that was read.
        stream: StreamId,
        /// Revision that was asked for.
        revision: Revision,
    },
    /// The checkpoint cannot be used here: it is of another incarnation, of another stream or number of logs, or after
    /// the last event. The consumer must start over.
    #[error("checkpoint cannot be used: {0}")]
    InvalidCheckpoint(String),
    /// A queue is full; nothing was written. Retry later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The store or its database does not answer; nothing was written. Retrying is safe.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// A commit was sent, and its outcome could not be learnt. Retry with the same event ids.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    /// The database refused this append for what it contains; nothing was written.
    #[error("refused by the database: {0}")]
    Refused(String),
    /// Stored data cannot be read, or they contradict each other.
    #[error("stored data is corrupt: {0}")]
    Corrupt(String),
    /// The schema of the store has another version than this program expects, or the store has no schema.
    #[error("{0}")]
    Schema(String),
    /// Rights, settings or capabilities of the database, or of the connection to a server, do not allow the request.
    #[error("{0}")]
    Unsupported(String),
    /// The request needs a known caller, and who calls is not known; nothing was done. The caller must send
    /// credentials, or other credentials.
    #[error("who calls is not known: {0}")]
    Unauthenticated(String),
    /// The caller has no right to the request; nothing was done.
    #[error("{0}")]
    Forbidden(String),
}

/// Shows the revision that was found, or that no stream was found.
struct Actual(Option<Revision>);

impl fmt::Display for Actual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(revision) => write!(f, "revision {revision}"),
            None => f.write_str("no stream"),
        }
    }
}

/// An error of an [`EventStore`](crate::EventStore): its kind, the operation that failed, and its cause.
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

/// What cannot fail has no error: so a value that is valid already may stand where one is made of a text.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl Error {
    /// Makes an error of this kind, without operation and cause.
    #[must_use]
    pub fn new(kind: ErrorKind) -> Self {
        Self {
            kind,
            operation: "",
            source: None,
        }
    }

    /// Makes an `InvalidArgument`. In the message `rule` follows `field`, so the two must read as one sentence.
    #[must_use]
    pub fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument {
            field: field.into(),
            rule: rule.into(),
        })
    }

    /// Makes an `Unavailable`: the store or its database does not answer, and nothing was written.
    #[must_use]
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable(detail.into()))
    }

    /// Makes the error for a log that is not open in a database, because the log is being moved to another database of
    /// the store, or was moved. It is an `Unavailable`. For backends.
    #[must_use]
    pub fn log_closed(log: LogId) -> Self {
        let text = format!(
            "log {log} is closed in this database: it is being moved to another one, or was"
        );
        Self::unavailable(text).caused_by(LogClosed(log))
    }

    /// Returns true if this error comes from [`Error::log_closed`], directly or through its causes.
    #[must_use]
    pub fn is_log_closed(&self) -> bool {
        self.has_cause::<LogClosed>()
    }

    /// Makes an `Unavailable` that lasts until an administrator acts: waiting does not help by itself, so appends are
    /// refused at once. For backends.
    #[must_use]
    pub fn needs_administrator(detail: impl Into<String>) -> Self {
        Self::unavailable(detail).caused_by(NeedsAdministrator {
            says: "only an administrator can change that".to_owned(),
            cause: None,
        })
    }

    /// Marks an error of another kind as one that lasts until an administrator acts. Its cause stays, and whoever shows
    /// the causes of errors shows nothing more than before. For backends.
    #[must_use]
    pub fn until_administrator_acts(mut self) -> Self {
        let mark = NeedsAdministrator {
            says: self.kind.to_string(),
            cause: self.source.take(),
        };
        self.caused_by(mark)
    }

    /// Returns true if this error comes from [`Error::needs_administrator`], directly or through its causes, or was
    /// marked by [`Error::until_administrator_acts`].
    #[must_use]
    pub fn is_for_administrator(&self) -> bool {
        self.has_cause::<NeedsAdministrator>()
    }

    /// Makes the error for a change that another node has sent and may have sent again, if the later attempt may have
    /// been stored before, and be gone with this stream. Nothing was stored by this attempt. It is an `Unavailable`.
    #[doc(hidden)]
    #[must_use]
    pub fn overtaken(stream: &StreamId) -> Self {
        let text = format!(
            "stream {stream} was deleted or changed while the change was on its way from another node"
        );
        Self::unavailable(text).caused_by(Overtaken)
    }

    /// Returns true if this error is that of [`Error::overtaken`], so that nothing was stored by the attempt.
    #[doc(hidden)]
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable(_)) && self.has_cause::<Overtaken>()
    }

    fn has_cause<E: std::error::Error + 'static>(&self) -> bool {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if error.is::<E>() {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// Makes a `Corrupt`: stored data cannot be read.
    #[must_use]
    pub fn corrupt(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt(detail.into()))
    }

    /// Sets the operation that failed, for example `append`. The message begins with it.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.operation = operation;
        self
    }

    /// Sets the cause. Causes go to logs, not to clients.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Returns the kind, on which a caller can act.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns true if the same request may succeed later without a change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Overloaded(_) | ErrorKind::Unavailable(_) | ErrorKind::OutcomeUnknown(_)
        )
    }
}

/// The cause of [`Error::log_closed`], by which [`Error::is_log_closed`] recognises it.
#[derive(Debug, thiserror::Error)]
#[error("log {0} is closed")]
struct LogClosed(LogId);

/// The cause of [`Error::needs_administrator`], by which [`Error::is_for_administrator`] recognises it.
#[derive(Debug)]
struct NeedsAdministrator {
    says: String,
    cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Display for NeedsAdministrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.says)
    }
}

impl std::error::Error for NeedsAdministrator {
    /// Returns the cause itself, so that its type can be found; a derived one would return its pointer.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause
            .as_deref()
            .map(|cause| cause as &(dyn std::error::Error + 'static))
    }
}

/// The cause of [`Error::overtaken`], by which [`Error::is_overtaken`] recognises it.
#[derive(Debug, thiserror::Error)]
#[error("another attempt may have been made")]
struct Overtaken;

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
    fn what_lasts_until_an_administrator_acts_is_known_by_its_cause() {
        let frozen = Error::needs_administrator("the database is read-only");
        assert_eq!(frozen.to_string(), "unavailable: the database is read-only");
        let wrapped = Error::unavailable("database 2").caused_by(frozen);
        assert!(wrapped.during("append").is_for_administrator());
        assert!(!Error::unavailable("away").is_for_administrator());
        let full = Error::new(ErrorKind::Unsupported("closed".into()));
        let marked = full.caused_by(LogClosed(LogId(3)));
        let marked = marked.until_administrator_acts();
        assert!(marked.is_for_administrator() && marked.is_log_closed());
    }

    #[test]
    fn an_attempt_that_was_overtaken_is_known_by_its_cause() {
        let stream = StreamId::new("cart-1").expect("valid");
        let overtaken = Error::overtaken(&stream).during("append");
        assert!(overtaken.is_overtaken() && overtaken.to_string().contains("cart-1"));
        assert!(!Error::unavailable("away").is_overtaken());
        let unknown = Error::new(ErrorKind::OutcomeUnknown("lost".into()));
        assert!(!unknown.caused_by(overtaken).is_overtaken());
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
