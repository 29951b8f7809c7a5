//! The meaning of the errors of SQLite, in one place.
//!
//! Invariant: a failed commit is *unknown* unless SQLite says that nothing can have been stored. After an I/O error
//! nothing that the process believes about the file can be trusted: the operating system may have dropped the pages
//! that it could not write. So the store is closed for writing until it is opened again.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use gesta_core::{Error, ErrorKind, Result};
use rusqlite::ErrorCode;
use rusqlite::ffi;

use crate::files;

/// An error inside this crate, before it becomes the public one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error(transparent)]
    Store(#[from] Error),
}

/// Result of the functions inside this crate.
pub(crate) type Outcome<T> = std::result::Result<T, Fault>;

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault {
            Fault::Store(error) => error,
            Fault::Sql(error) => public(error),
        }
    }
}

/// Makes the public error for a read, or for a write of which nothing was stored.
pub(crate) fn public(error: rusqlite::Error) -> Error {
    let text = format!("SQLite: {error}");
    let kind = match &error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => ErrorKind::Corrupt(text),
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::NoLargeFileSupport
            | ErrorCode::AuthorizationForStatementDenied => {
                let unfit = Error::new(ErrorKind::Unsupported(text)).caused_by(error);
                return unfit.until_administrator_acts();
            }
            // Not `Unavailable`: to wait for space would make every caller wait; they get an error at once.
            ErrorCode::DiskFull => ErrorKind::Unsupported(format!(
                "there is no space on the disk; appends go on once there is on that of the store ({text})"
            )),
            _ => ErrorKind::Unavailable(text),
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => ErrorKind::Corrupt(text),
        _ => ErrorKind::Unavailable(text),
    };
    Error::new(kind).caused_by(error)
}

/// Makes the `Unsupported` of a store that is of no use as its files are. The text may name paths and users of the
/// machine, so it is told to whoever looks after the server and to the log, and to nobody else.
pub(crate) fn unfit(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported(text.into())).until_administrator_acts()
}

/// Meaning of an error while writing, for the batch and for the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteFault {
    /// The key of a row is taken: the batch misses.
    Taken,
    /// SQLite refuses the content: the same batch can never be stored.
    Content,
    /// The reason is a passing one: nothing is stored, and a later attempt may succeed.
    Passing,
    /// The file, or what the process believes about it, can no longer be trusted.
    Fatal,
}

pub(crate) fn write_fault(error: &rusqlite::Error) -> WriteFault {
    let rusqlite::Error::SqliteFailure(failure, _) = error else {
        return WriteFault::Content;
    };
    match failure.code {
        ErrorCode::ConstraintViolation => match failure.extended_code {
            ffi::SQLITE_CONSTRAINT_PRIMARYKEY
            | ffi::SQLITE_CONSTRAINT_UNIQUE
            | ffi::SQLITE_CONSTRAINT_ROWID => WriteFault::Taken,
            _ => WriteFault::Content,
        },
        ErrorCode::TooBig | ErrorCode::TypeMismatch | ErrorCode::ParameterOutOfRange => {
            WriteFault::Content
        }
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::DiskFull
        | ErrorCode::OutOfMemory
        | ErrorCode::OperationInterrupted
        | ErrorCode::SchemaChanged => WriteFault::Passing,
        _ => WriteFault::Fatal,
    }
}

/// Reason why the store no longer writes, once there is one, with what to do. All parts of the store share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultMark(Arc<OnceLock<String>>);

impl FaultMark {
    /// Closes the store for writing after an error of the disk or the file.
    pub(crate) fn set(&self, cause: &dyn fmt::Display) {
        self.close(format!(
            "the store was closed for writing after an error ({cause}): stop this process, run `gesta verify`, start it again"
        ));
    }

    /// Closes the store for writing because its names no longer lead to it. The sentence says what to do.
    pub(crate) fn set_lost(&self, sentence: &str) {
        self.close(format!("the store was closed for writing: {sentence}"));
    }

    fn close(&self, text: String) {
        if self.0.set(text.clone()).is_ok() {
            tracing::error!("{text}");
        }
    }

    /// Refuses to write once the store is closed for writing.
    ///
    /// # Errors
    /// `Unsupported` if the store no longer writes. It is not `Unavailable`, because trying again in this process
    /// cannot help.
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(text) => Err(unfit(text.as_str())),
        }
    }
}

/// Makes the error for a store that cannot be opened, and says it if the disk is full: SQLite calls that an I/O error
/// if it happens to the file by which connections share their memory.
pub(crate) fn opening_failed(path: &Path, fault: Fault) -> Error {
    let Fault::Sql(error) = fault else {
        return fault.into();
    };
    let code = error.sqlite_error().map(|error| error.extended_code);
    let is_shared_memory = matches!(
        code,
        Some(ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMMAP | ffi::SQLITE_IOERR_SHMOPEN)
    );
    let may_be_space = is_shared_memory
        || matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen)
        );
    let is_full = matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull));
    let why = if is_full || may_be_space && files::is_full(path) {
        "there is no space on its disk: free some, and start again"
    } else if is_shared_memory {
        "the file beside it that ends in -shm cannot be made as large as it must be, or not be shared in memory \
         (is a quota used up? is it a network file system?)"
    } else {
        return public(error);
    };
    let text = format!(
        "{} cannot be opened: {why} (SQLite: {error})",
        path.display()
    );
    Error::unavailable(text).caused_by(error)
}

pub(crate) fn closed() -> Error {
    Error::unavailable("the store is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    /// Goal: every code that a caller acts on, one by one.
    #[test]
    fn codes_and_what_they_mean() {
        for (code, expected) in [
            (ffi::SQLITE_CONSTRAINT_PRIMARYKEY, WriteFault::Taken),
            (ffi::SQLITE_CONSTRAINT_UNIQUE, WriteFault::Taken),
            (ffi::SQLITE_CONSTRAINT_CHECK, WriteFault::Content),
            (ffi::SQLITE_TOOBIG, WriteFault::Content),
            (ffi::SQLITE_FULL, WriteFault::Passing),
            (ffi::SQLITE_BUSY, WriteFault::Passing),
            (ffi::SQLITE_NOMEM, WriteFault::Passing),
            (ffi::SQLITE_IOERR_FSYNC, WriteFault::Fatal),
            (ffi::SQLITE_IOERR_WRITE, WriteFault::Fatal),
            (ffi::SQLITE_CORRUPT, WriteFault::Fatal),
            (ffi::SQLITE_READONLY, WriteFault::Fatal),
        ] {
            assert_eq!(write_fault(&failure(code)), expected, "{code}");
        }
        assert!(matches!(
            public(failure(ffi::SQLITE_NOTADB)).kind(),
            ErrorKind::Corrupt(_)
        ));
        assert!(matches!(
            public(failure(ffi::SQLITE_IOERR_READ)).kind(),
            ErrorKind::Unavailable(_)
        ));
        let read_only = public(failure(ffi::SQLITE_READONLY));
        assert!(matches!(read_only.kind(), ErrorKind::Unsupported(_)));
        assert!(read_only.is_for_administrator());
    }
}
