//! Opens the database of a store for a command that works on it itself.
//!
//! Not here: stores and servers of data commands (`connect`), the database of a server (`serve`), which may wait for
//! it.

use gesta::{Database, Options};
use gesta_core::{Error, ErrorKind};

use super::waiting::told_if_slow;
use super::{BEFORE_ALL, interrupts, until_stopped};
use crate::exit::{Code, Failure, Outcome};

/// Opens a database. If a server has it open, the error says how the command, if there is such a one, is given through
/// that server: with all of its arguments, and without a guess at the address of the server.
pub(super) async fn open(url: &str, through_server: Option<&str>) -> Outcome<Database> {
    let opened = told_if_slow(Database::open(url, &Options::default())).await;
    opened.map_err(|error| match through_server {
        Some(command) => open_in_a_server(error, || {
            format!(
                "stop that process, or if it is a server, ask it: gesta {command} --store URL, with the URL of that server"
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

/// Does what [`on_database`] does until Ctrl-C; `stopped` says what there is then.
pub(super) async fn on_database_until_stopped<T>(
    url: &str,
    through_server: Option<&str>,
    stopped: impl FnOnce() -> String,
    work: impl AsyncFnOnce(&Database) -> Outcome<T>,
) -> Outcome<T> {
    let mut interrupts = interrupts()?;
    let opening = open(url, through_server);
    let database = until_stopped(&mut interrupts, opening, || BEFORE_ALL.into()).await?;
    let outcome = until_stopped(&mut interrupts, work(&database), stopped).await;
    database.close().await;
    outcome
}

/// Makes the failure of an error: of a store that a server has open one line with this advice, and not that of the
/// store as well.
pub(super) fn open_in_a_server(error: Error, advice: impl FnOnce() -> String) -> Failure {
    match error.kind() {
        ErrorKind::Unavailable(found) if found.contains("is open in") => {
            let who = found.split_once(", which holds");
            let who = who.map_or(found.as_str(), |(who, _)| who);
            Failure::Message(Code::Unavailable, format!("{who}: {}", advice()))
        }
        _ => error.into(),
    }
}
