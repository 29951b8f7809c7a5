//! A database of the target: what a copy needs of it.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Error, ErrorKind, Incarnation, Result};
use gesta_sql::verify::{AuditName, AuditRow};

use crate::batch::{Batch, Floor, State};

/// What stands in the database of a target.
#[derive(Debug)]
pub(crate) enum Found {
    /// A store without any event.
    Empty,
    /// A copy that is not whole.
    Unfinished(Box<State>),
    /// A store that a move has opened.
    Arrived(Box<State>),
    /// A store that is in use, or was.
    Used,
}

/// How a target is opened for its users.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    /// The incarnation that the store gets.
    pub(crate) incarnation: Incarnation,
    /// Whether virtual streams are switched on.
    pub(crate) virtual_streams: bool,
}

/// Which names are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Names {
    Streams,
    Types,
}

/// Which entries of the index of tags are counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    All,
    /// Those of events after a position that have one of these tags.
    After(i64, Vec<String>),
}

/// A database of the target. Each method that writes is one transaction.
#[async_trait]
pub(crate) trait Part: Send {
    /// Names the database for people.
    fn name(&self) -> &str;

    /// Returns how many logs the store has.
    fn logs(&self) -> u16;

    /// Returns the logs that lie in this database.
    fn own(&self) -> &[u16];

    /// Looks at what is there.
    async fn look(&mut self) -> Result<Found>;

    /// Marks the empty store as the unfinished target of a copy.
    async fn begin(&mut self, state: &State) -> Result<()>;

    /// Writes the part of a batch that belongs here, and the state after it, if every log ends where it should.
    async fn write(&mut self, batch: &Arc<Batch>, state: &State) -> Result<()>;

    /// Replaces the state.
    async fn put(&mut self, state: &State) -> Result<()>;

    /// Reads names of a log after a row id.
    async fn names(&mut self, names: Names, log: u16, after: i64) -> Result<Vec<AuditName>>;

    /// Reads rows of a log after a position.
    async fn rows(&mut self, log: u16, after: i64) -> Result<Vec<AuditRow>>;

    /// Reads how far streams of a log were scavenged.
    async fn floors(&mut self, log: u16) -> Result<Vec<Floor>>;

    /// Returns the position of the last row of each log that lies here; 0 if it has none.
    async fn ends(&mut self) -> Result<Vec<(u16, i64)>>;

    /// Counts the entries of the index of tags of a log.
    async fn count_tags(&mut self, log: u16, which: Which) -> Result<u64>;

    /// Waits until no other program of Gesta uses the database.
    async fn alone(&mut self) -> Result<()>;

    /// Takes the mark away: from now on the store is served.
    async fn finish(&mut self, finish: Finish) -> Result<()>;
}

/// How many rows are read at once when the target is compared.
pub(crate) const READ_ROWS: i64 = 10_000;

/// Returns true if a row belongs to a part.
pub(crate) fn is_own(own: &[u16], log: u16) -> bool {
    own.binary_search(&log).is_ok()
}

/// Writes a state down.
pub(crate) fn state_text(state: &State) -> Result<String> {
    let text = serde_json::to_string(state);
    text.map_err(|error| Error::corrupt(format!("the state of a copy cannot be written: {error}")))
}

/// Reads a state.
pub(crate) fn state_of(text: &str) -> Result<Box<State>> {
    let state = serde_json::from_str(text);
    state.map_err(|error| Error::corrupt(format!("the state of a copy cannot be read: {error}")))
}

/// Makes the error for a target that is not empty.
pub(crate) fn used(name: &str) -> Error {
    ErrorKind::Unsupported(format!(
        "the target must be empty: {name} has events, or had some; if it is the target of a copy whose end was not seen, \
         that copy is whole, for the target was opened only after everything was compared: check it with `gesta verify`, \
         and see that it shows the last events of the source"
    ))
    .into()
}

/// Makes the error for a log into which something else has written.
pub(crate) fn disturbed(name: &str, log: u16, expected: i64, found: i64) -> Error {
    ErrorKind::Unsupported(format!(
        "log {log} in {name} ends at position {found}, and this copy has written up to {expected}: something else writes to \
         the target; begin with an empty one"
    ))
    .into()
}
