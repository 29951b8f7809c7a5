//! How a command ends: its exit code, and what it says about a failure.
//!
//! Invariants: each kind of error has one code; the codes are documented in `--help` and
//! `docs/reference/cli.md` and do not change. A reader that closes the pipe is no failure.

use std::fmt;
use std::io;

use gesta_core::ErrorKind;

/// The exit codes. The argument parser also uses 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// The command failed for another reason.
    Other = 1,
    /// The command was used wrongly, or a value is invalid.
    Usage = 2,
    /// There is no such stream or event, or the stream was closed by a tombstone.
    NotFound = 3,
    /// The stream was not at the expected revision.
    WrongExpectedRevision = 4,
    /// The store or the server is unavailable or overloaded.
    Unavailable = 5,
    /// The outcome of an append is not known.
    OutcomeUnknown = 6,
    /// Stored data is damaged.
    Damaged = 7,
    /// The checkpoint cannot be used with this store.
    InvalidCheckpoint = 8,
    /// It is not known who calls, or the caller may not do this.
    NotAllowed = 9,
    /// The command was stopped by a signal before it was done.
    Interrupted = 130,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store failed, or the connection to it.
    Store(gesta_core::Error),
    /// Another failure, with a message and the code that fits it.
    Message(Code, String),
    /// The user was asked, and did not agree. It is told without the word error: what was wanted is so.
    Declined,
    /// The reader of standard output has closed it. This is no failure.
    ClosedPipe,
}

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Makes the failure of a command that was used wrongly.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Message(Code::Usage, message.into())
    }

    /// Makes a failure without a code of its own.
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::Message(Code::Other, message.into())
    }

    /// Makes the failure of a command that was stopped by a signal before it was done.
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self::Message(Code::Interrupted, message.into())
    }

    /// Returns the exit code; `None` for success.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Failure::Store(error) => Some(code_of(error.kind())),
            Failure::Message(code, _) => Some(*code),
            Failure::Declined => Some(Code::Other),
            Failure::ClosedPipe => None,
        }
    }
}

fn code_of(kind: &ErrorKind) -> Code {
    match kind {
        ErrorKind::InvalidArgument { .. } => Code::Usage,
        ErrorKind::StreamNotFound(_)
        | ErrorKind::StreamTombstoned(_)
        | ErrorKind::EventNotFound { .. } => Code::NotFound,
        ErrorKind::WrongExpectedRevision { .. }
        | ErrorKind::ConditionFailed { .. }
        | ErrorKind::StoredAndDeleted { .. } => Code::WrongExpectedRevision,
        ErrorKind::Overloaded(_) | ErrorKind::Unavailable(_) => Code::Unavailable,
        ErrorKind::OutcomeUnknown(_) => Code::OutcomeUnknown,
        ErrorKind::Corrupt(_) => Code::Damaged,
        ErrorKind::InvalidCheckpoint(_) => Code::InvalidCheckpoint,
        ErrorKind::Unauthenticated(_) | ErrorKind::Forbidden(_) => Code::NotAllowed,
        _ => Code::Other,
    }
}

impl fmt::Display for Failure {
    /// Shows the message, then each cause that adds something.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self {
            Failure::ClosedPipe => return Ok(()),
            Failure::Declined => return f.write_str("nothing was done"),
            Failure::Message(_, message) => return f.write_str(message),
            Failure::Store(error) => error,
        };
        let mut said = error.to_string();
        f.write_str(&said)?;
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said.push_str(&text);
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl From<gesta_core::Error> for Failure {
    fn from(error: gesta_core::Error) -> Self {
        Failure::Store(error)
    }
}

/// Converts errors of standard input and output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::ClosedPipe
        } else {
            Failure::other(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{Error, ExpectedRevision, Revision, StreamId};

    /// Goal: that an error is marked for administrators adds nothing to what is said: a user may mend a wrong path or a
    /// wrong password.
    #[test]
    fn a_mark_adds_nothing_to_a_message() {
        let full = || {
            Error::new(ErrorKind::Unsupported(
                "cannot open a.db: no such file".into(),
            ))
        };
        let cause = io::Error::other("no such file");
        let marked = full().caused_by(cause).until_administrator_acts();
        let marked = marked.during("open");
        assert!(marked.is_for_administrator());
        let said = Failure::from(marked).to_string();
        assert_eq!(said, full().during("open").to_string());
    }

    #[test]
    fn each_kind_has_its_code() {
        let stream = StreamId::new("cart-1").expect("valid");
        let kinds = [
            (ErrorKind::StreamNotFound(stream.clone()), 3),
            (ErrorKind::StreamTombstoned(stream.clone()), 3),
            (
                ErrorKind::EventNotFound {
                    stream: stream.clone(),
                    revision: Revision(1),
                },
                3,
            ),
            (
                ErrorKind::WrongExpectedRevision {
                    stream,
                    expected: ExpectedRevision::NoStream,
                    actual: None,
                },
                4,
            ),
            (ErrorKind::Overloaded(String::new()), 5),
            (ErrorKind::Unavailable(String::new()), 5),
            (ErrorKind::OutcomeUnknown(String::new()), 6),
            (ErrorKind::Corrupt(String::new()), 7),
            (ErrorKind::InvalidCheckpoint(String::new()), 8),
            (ErrorKind::Unauthenticated(String::new()), 9),
            (ErrorKind::Forbidden(String::new()), 9),
            (ErrorKind::Schema(String::new()), 1),
            (ErrorKind::Unsupported(String::new()), 1),
            (ErrorKind::Refused(String::new()), 1),
            (
                ErrorKind::InvalidArgument {
                    field: String::new(),
                    rule: String::new(),
                },
                2,
            ),
        ];
        for (kind, code) in kinds {
            let failure = Failure::from(Error::new(kind.clone()));
            assert_eq!(
                failure.code().map(|code| code as u8),
                Some(code),
                "{kind:?}"
            );
        }
        let closed = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(closed.code(), None);
    }
}
