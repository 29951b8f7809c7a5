//! Opens the database of a store for a command that works on it itself.
//!
//! Not here: stores and servers of data commands (`connect`), the database of a server (`serve`), which may wait for
//! it.

use gesta::{Database, Options};
use gesta_core::{Error, ErrorKind};

use crate::exit::{Failure, Outcome};

/// Opens a database. If a server has it open, the error says how the command, if there is such a one, is given through
/// that server.
pub(super) async fn open(url: &str, through_server: Option<&str>) -> Outcome<Database> {
    let opened = Database::open(url, &Options::default()).await;
    opened.map_err(|error| match through_server {
        Some(command) => open_in_a_server(error, || {
            format!(
                "a server has this store open; ask that server: gesta {command} --store http://127.0.0.1:2113"
            )
        }),
        None => error.into(),
    })
}

/// Opens a database for some work, and closes it however the work has ended.
pub(super) async fn on_database<T>(
    url: &str,
    through_server: Option<&str>,
    work: impl AsyncFnOnce(&Database) -> Outcome<T>,
) -> Outcome<T> {
    let database = open(url, through_server).await?;
    let outcome = work(&database).await;
    database.close().await;
    outcome
}

/// Makes the failure of an error: of a store that a server has open, with this text, which says what to do about it.
pub(super) fn open_in_a_server(error: Error, text: impl FnOnce() -> String) -> Failure {
    match error.kind() {
        ErrorKind::Unavailable(found) if found.contains("is open in") => {
            Error::unavailable(text()).caused_by(error).into()
        }
        _ => error.into(),
    }
}
