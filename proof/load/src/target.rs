//! One interface for everything that can be loaded with events: Gesta in this process, Gesta behind HTTP, journals
//! of other systems' designs, other systems themselves.
//!
//! Every stream belongs to one worker and gets its events one append after the other, so each append carries the
//! right expected revision and no target is measured at refusing. What a target stores is read back afterwards and
//! compared (`check`), so a target that drops, doubles or alters an event is no result.
//! Not here: who appends when (`load`), what events look like (`events`).

mod check;
mod events;
mod gesta;
pub mod grpc;
mod load;

#[cfg(test)]
mod tests;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use gesta_report::failure::Result;

pub use check::check;
pub use events::{Events, MARK_BYTES, NumberOf};
pub use gesta::GestaTarget;
pub use gesta::{Expected, Protocol};
pub use gesta_kit::history::{Claims, StoredAt};
pub use load::{Beside, Observer, connect, run_all};
pub use load::{Load, Phase, PhaseRun, run};

/// One event to append.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its id; also stands at the beginning of `data`, see [`Events`].
    pub id: Uuid,
    /// Its contents.
    pub data: Bytes,
}

/// An append to one stream.
#[derive(Debug, Clone, Copy)]
pub struct Append<'a> {
    /// The stream, `category-id`.
    pub stream: &'a str,
    /// Revision of the first of the events: the number of events that the stream has so far.
    pub revision: u64,
    /// At least one.
    pub events: &'a [Event],
}

/// Why an append was not acknowledged.
#[derive(Debug, Clone)]
pub enum AppendError {
    /// Nothing was stored and the same append may be tried again; names the cause (`40001`, `40P01`, `overloaded`).
    Retry(String),
    /// Nothing was stored, and another try would not help.
    Failed(String),
    /// It may be stored or not; the session is of no more use.
    Unknown(String),
}

/// One event as a target stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Stream.
    pub stream: String,
    /// Its number in the stream, from 0, whatever the target counts from.
    pub revision: u64,
    /// The first [`MARK_BYTES`] of what follows the opening of the data: see [`Events`].
    pub mark: String,
    /// Length of the stored data; none if the target stores another form of it (such as `jsonb`).
    pub bytes: Option<u64>,
    /// What else a target shows that keeps everything; none: it does not.
    pub whole: Option<Whole>,
}

/// All that is stored of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// Its place in the order of all events.
    pub position: u64,
    /// Its data.
    pub data: Bytes,
}

/// What is known about a target.
#[derive(Debug, Clone, Serialize)]
pub struct TargetFacts {
    /// The database or server and its version.
    pub engine: String,
    /// What an acknowledgement means: `full`, `weakened` or `none`. Targets of one run must agree.
    pub durability: String,
    /// The settings behind it.
    pub durability_detail: String,
    /// What a reader should know of how this target is driven, in one sentence.
    pub note: String,
}

/// Something that stores events.
#[async_trait]
pub trait Target: Send + Sync {
    /// Short name, unique within a run: lower case, dashes.
    fn name(&self) -> &str;

    /// For people.
    fn title(&self) -> &str;

    /// Makes everything anew and empty.
    async fn prepare(&self) -> Result<()>;

    /// What is known about it; after `prepare`.
    async fn facts(&self) -> Result<TargetFacts>;

    /// A connection for one worker.
    async fn connect(&self) -> Result<Box<dyn Session>>;

    /// Shows every stored event of the streams whose names begin with `prefix`, in any order.
    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()>;

    /// Bytes of tables and indexes, or of files; none if nobody can tell.
    async fn disk_bytes(&self) -> Result<Option<u64>>;

    /// True if it works in this process, so that this process's time is its own too.
    fn is_embedded(&self) -> bool {
        false
    }

    /// Closes what this process has open; it may be opened again by `connect`.
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Closes what is open and removes what was made.
    async fn remove(&self) -> Result<()>;
}

/// A worker's connection.
#[async_trait]
pub trait Session: Send {
    /// Appends; an `Ok` means: durably stored, as [`TargetFacts::durability`] says.
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError>;

    /// Where the last append that was acknowledged is stored, if its answer said so. Then [`Stored::whole`] must be
    /// shown.
    fn place(&self) -> Option<StoredAt> {
        None
    }
}
