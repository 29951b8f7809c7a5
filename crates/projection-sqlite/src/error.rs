//! What an error of SQLite means for a projection.

use gesta_projection::{TargetError, TargetErrorKind};
use rusqlite::ErrorCode;

/// Tells what an error means.
pub(crate) fn kind_of(error: &rusqlite::Error) -> TargetErrorKind {
    // Somebody has deleted a table: no event is to blame.
    if error.to_string().contains("no such table") {
        return TargetErrorKind::Unusable;
    }
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::CannotOpen
            | ErrorCode::DiskFull
            | ErrorCode::ReadOnly
            | ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::NoLargeFileSupport
            | ErrorCode::OperationInterrupted
            | ErrorCode::OperationAborted
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::SchemaChanged,
        ) => TargetErrorKind::Away,
        Some(
            ErrorCode::PermissionDenied
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::NotADatabase
            | ErrorCode::AuthorizationForStatementDenied,
        ) => TargetErrorKind::Unusable,
        _ => TargetErrorKind::Refused,
    }
}

/// Makes the error of a target of one of SQLite.
pub(crate) fn from_sqlite(error: &rusqlite::Error) -> TargetError {
    let text = format!("SQLite: {error}");
    let text = match text.contains("no such table: gesta_projections") {
        true => format!(
            "there are no projections and no indexes in this file ({text}): another file is meant, or the process that keeps the \
             first one has not begun"
        ),
        false => text,
    };
    TargetError::new(kind_of(error), text)
}

/// Makes the error of a row that this program cannot have written.
pub(crate) fn unreadable(what: &str, error: impl std::fmt::Display) -> TargetError {
    TargetError::new(
        TargetErrorKind::Unusable,
        format!("{what} of a projection cannot be read: {error}"),
    )
}

/// A result of this crate.
pub(crate) type Result<T> = std::result::Result<T, TargetError>;

/// Gives a result of SQLite the error of a target.
pub(crate) trait OrTarget<T> {
    /// Maps the error.
    fn or_target(self) -> Result<T>;
}

impl<T> OrTarget<T> for rusqlite::Result<T> {
    fn or_target(self) -> Result<T> {
        self.map_err(|error| from_sqlite(&error))
    }
}
