//! Decides what an answer of the database means.
//!
//! Every `SQLSTATE` is judged in one place. The question about a batch is always: *can it be stored, now or later?* An
//! `ERROR` before the commit says no; a lost connection says nothing. Invariant: texts hold the server's message and
//! code, never its detail, which may quote payloads.

use gesta_core::backend::BatchOutcome;
use gesta_core::{Error, ErrorKind};
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The constraints whose violation means that another writer came first.
const CHAIN_CONSTRAINTS: &[&str] = &[
    "events_pkey",
    "events_stream_revision_key",
    "streams_pkey",
    "streams_name_key",
    "types_pkey",
    "types_name_key",
    "tags_pkey",
];

/// The name that an error carries with which a database refuses everything, since the store has moved to another one.
/// It stands where the name of a constraint stands, so that no text is compared.
pub const MOVED: &str = "gesta_moved";

/// What the failure of a batch means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Another writer came first.
    Missed,
    /// The batch was refused because of what it contains.
    Refused,
    /// The batch was not stored, for a passing reason.
    Failed,
    /// The batch may be stored, or may be stored later.
    Unknown,
}

fn class_of_state(code: &str, constraint: Option<&str>, ends_connection: bool) -> Class {
    if ends_connection {
        return Class::Unknown;
    }
    match (code, code.get(..2).unwrap_or(code)) {
        ("23505", _) if constraint.is_some_and(|name| CHAIN_CONSTRAINTS.contains(&name)) => {
            Class::Missed
        }
        // The database was made read-only meanwhile, or is not the primary any more: the statement has failed.
        ("25006", _) => Class::Failed,
        // The server ends the connection, or a proxy has lost the prepared statements.
        ("57P01" | "57P02" | "57P03" | "57P04" | "57P05", _) | (_, "08" | "25" | "26") => {
            Class::Unknown
        }
        // These are deadlocks, failed serialisation, time-outs of locks and statements, no space, no memory, and too
        // many connections.
        ("40001" | "40P01" | "55P03" | "57014" | "55006", _) | (_, "40" | "53" | "58") => {
            Class::Failed
        }
        // Rights or tables are missing. An administrator can repair this, and splitting the batch cannot.
        (_, "28" | "3D" | "3F" | "42") => Class::Failed,
        // These are 22, 23, 54, P0 and unknown codes: nothing was stored, and splitting the batch finds the cause.
        _ => Class::Refused,
    }
}

pub(crate) fn class_of(error: &tokio_postgres::Error) -> Class {
    match error.as_db_error() {
        Some(db) => class_of_state(db.code().code(), db.constraint(), ends_connection(db)),
        // The values could not be encoded, so nothing was sent.
        None if is_encoding(error) => Class::Refused,
        None => Class::Unknown,
    }
}

fn ends_connection(db: &DbError) -> bool {
    matches!(
        db.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    )
}

/// Tells whether values could not be encoded. The driver does not show the kinds of its errors, and the cause of this
/// one is an I/O error, as that of a lost connection is, so only the text tells them apart. A test makes both errors;
/// with another text they would count as *unknown*.
fn is_encoding(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    text.starts_with("error serializing parameter") || text.starts_with("error encoding message")
}

/// Tells whether somebody on the way says that the protocol does not allow the statement.
pub(crate) fn is_of_protocol(error: &tokio_postgres::Error) -> bool {
    matches!(
        error.code().and_then(|code| code.code().get(..2)),
        Some("08")
    )
}

/// Tells whether the statement gave up waiting, for a lock or for anything else.
pub(crate) fn is_wait_given_up(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(code) if matches!(code.code(), "55P03" | "57014"))
}

/// Tells whether the values could not be encoded, so that the server has not seen the statement.
pub(crate) fn was_not_sent(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none() && is_encoding(error)
}

/// Tells whether the connection must be discarded after this error.
pub(crate) fn is_lost(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(db) => {
            ends_connection(db) || matches!(db.code().code().get(..2), Some("08" | "25" | "26"))
        }
        None => !is_encoding(error),
    }
}

/// Returns the message for people: text and code, without detail.
pub(crate) fn text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => db_text(db),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

/// Returns the message for people of a statement that failed, and if a right is missing, or may be, what mends that.
fn advised(error: &tokio_postgres::Error) -> String {
    let text = text(error);
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => format!(
            "{text}: the role that the URL names lacks a right, which an administrator grants; `gesta schema print` ends with \
             the GRANT of each right that a server needs"
        ),
        // What a role may not use, it does not see.
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => format!(
            "{text}: the tables of the store were removed, or the role that the URL names has lost the right to use their \
             schema (GRANT USAGE ON SCHEMA …)"
        ),
        _ => text,
    }
}

pub(crate) fn db_text(db: &DbError) -> String {
    format!("{} (SQLSTATE {})", db.message(), db.code().code())
}

/// Why a database takes no appends that an administrator has made read-only.
pub(crate) const READ_ONLY: &str = "the database is read-only (default_transaction_read_only)";

/// Makes the error of a database, user or server that an administrator has made read-only.
pub(crate) fn read_only() -> Error {
    Error::needs_administrator(READ_ONLY)
}

/// Makes the `Unsupported` of a database that is of no use as it is, or of what is set for it. The text may name hosts,
/// roles and tables, so it is told to whoever looks after the server and to the log, and to nobody else.
pub(crate) fn unfit(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported(text.into())).until_administrator_acts()
}

/// Returns the error of a statement that was refused because the store has moved to another database; it names the new
/// place. Waiting does not help: who goes on must go there.
fn moved(error: &tokio_postgres::Error) -> Option<Error> {
    let db = error.as_db_error()?;
    (db.constraint() == Some(MOVED)).then(|| Error::needs_administrator(db.message()))
}

/// Returns the outcome of a batch that ended with this error.
pub(crate) fn outcome(error: &tokio_postgres::Error) -> BatchOutcome {
    if let Some(moved) = moved(error) {
        return BatchOutcome::Failed(moved);
    }
    if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
        return BatchOutcome::Failed(read_only());
    }
    let text = advised(error);
    match class_of(error) {
        Class::Missed => BatchOutcome::Missed,
        Class::Refused => BatchOutcome::Refused(ErrorKind::Refused(text).into()),
        // Waiting gives no right. A right may be missing for new names alone, so each append is told by itself.
        Class::Failed if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            BatchOutcome::Refused(unfit(text))
        }
        Class::Failed => BatchOutcome::Failed(Error::unavailable(text)),
        Class::Unknown => BatchOutcome::Unknown(ErrorKind::OutcomeUnknown(text).into()),
    }
}

/// Returns the error of a read or of an administrative statement.
pub(crate) fn general(error: &tokio_postgres::Error) -> Error {
    if let Some(moved) = moved(error) {
        return moved;
    }
    let text = advised(error);
    let Some(code) = error.code() else {
        return Error::unavailable(text);
    };
    match (code, code.code().get(..2).unwrap_or_default()) {
        (&SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED, _) => Error::corrupt(text),
        (&SqlState::READ_ONLY_SQL_TRANSACTION, _) => read_only(),
        (
            &SqlState::UNDEFINED_TABLE
            | &SqlState::UNDEFINED_COLUMN
            | &SqlState::INVALID_SCHEMA_NAME,
            _,
        ) => ErrorKind::Schema(text).into(),
        (&SqlState::INSUFFICIENT_PRIVILEGE, _) | (_, "28" | "3D" | "0A") => unfit(text),
        (_, "22" | "23" | "54" | "P0") => ErrorKind::Refused(text).into(),
        _ => Error::unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

    use super::*;

    /// Goal: one line per code that the contract names.
    #[test]
    fn every_code_has_its_class() {
        let classes = [
            ("57P01", Class::Unknown),
            ("57P02", Class::Unknown),
            ("57P03", Class::Unknown),
            ("08006", Class::Unknown),
            ("08P01", Class::Unknown),
            ("25006", Class::Failed),
            ("25P02", Class::Unknown),
            ("26000", Class::Unknown),
            ("40001", Class::Failed),
            ("40P01", Class::Failed),
            ("55P03", Class::Failed),
            ("57014", Class::Failed),
            ("53100", Class::Failed),
            ("53200", Class::Failed),
            ("58030", Class::Failed),
            ("42501", Class::Failed),
            ("42P01", Class::Failed),
            ("22021", Class::Refused),
            ("22P02", Class::Refused),
            ("23502", Class::Refused),
            ("23514", Class::Refused),
            ("54000", Class::Refused),
            ("P0001", Class::Refused),
            ("XX000", Class::Refused),
        ];
        for (code, class) in classes {
            assert_eq!(class_of_state(code, None, false), class, "{code}");
            assert_eq!(
                class_of_state(code, None, true),
                Class::Unknown,
                "fatal {code}"
            );
        }
    }

    /// A value that cannot be encoded.
    #[derive(Debug)]
    struct Unfit;

    impl ToSql for Unfit {
        fn to_sql(
            &self,
            _: &Type,
            _: &mut bytes::BytesMut,
        ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
            Err("does not fit".into())
        }

        fn accepts(_: &Type) -> bool {
            true
        }

        to_sql_checked!();
    }

    /// The driver's texts, by which we tell that nothing was sent, are those of the driver that is built in. A new
    /// version with other texts fails here.
    #[tokio::test]
    async fn what_was_not_sent_is_told_from_a_lost_connection() {
        let Some(server) = gesta_rig::shared() else {
            return;
        };
        let client = gesta_rig::connect(&server.url()).await.expect("connects");
        let unfit = client.query_typed("SELECT $1::text", &[(&Unfit, Type::TEXT)]);
        let zero = client.prepare("SELECT '\0'");
        for error in [
            unfit.await.expect_err("cannot be encoded"),
            zero.await.expect_err("cannot be sent"),
        ] {
            assert!(was_not_sent(&error), "{error}");
            assert!(
                !is_lost(&error) && class_of(&error) == Class::Refused,
                "{error}"
            );
        }
        client
            .simple_query("SELECT 1")
            .await
            .expect("the connection lives");
        let ended = client.simple_query("SELECT pg_terminate_backend(pg_backend_pid())");
        ended.await.expect_err("the server ends it");
        let error = client.simple_query("SELECT 1").await.expect_err("closed");
        assert!(!was_not_sent(&error) && is_lost(&error), "{error}");
        assert_eq!(class_of(&error), Class::Unknown);
    }

    #[test]
    fn only_our_own_unique_keys_are_a_miss() {
        for name in CHAIN_CONSTRAINTS {
            assert_eq!(class_of_state("23505", Some(name), false), Class::Missed);
            assert!(
                crate::schema::MIGRATIONS
                    .print()
                    .contains(&format!("CONSTRAINT {name} ")),
                "{name}"
            );
        }
        assert_eq!(
            class_of_state("23505", Some("added_by_somebody"), false),
            Class::Refused
        );
        assert_eq!(class_of_state("23505", None, false), Class::Refused);
    }
}
