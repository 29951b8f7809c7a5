//! The store that moves: what a move needs of it.

use async_trait::async_trait;
use gesta_core::{Incarnation, Result};
use gesta_postgres::Blocker;
use gesta_sql::verify::AuditSource;
use uuid::Uuid;

use crate::moving::{Note, SourceStand};

/// What the store holds at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    pub(crate) incarnation: Incarnation,
    /// The position of the last row of each log; 0 if there is none.
    pub(crate) ends: Vec<i64>,
    /// A number that grows whenever scavenging removes something.
    pub(crate) scavenged: u64,
    pub(crate) virtual_streams: bool,
}

/// What was copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Copied {
    pub(crate) look: Look,
    /// The checksum of the last row of each log; 0 if there is none.
    pub(crate) marks: Vec<i64>,
}

/// What has become of closing or shutting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    Done,
    /// Not yet: statements of others are under way that last ([`Source::blockers`]).
    Later,
    /// Not yet: there is more than what was copied, so the store must be looked at again.
    Changed,
    /// Never: events were scavenged since.
    Scavenged,
    /// Never: the store has another history.
    OtherHistory,
}

/// The store that moves. Each method that changes something is one transaction.
#[async_trait]
pub(crate) trait Source: Send {
    /// Returns how many rows may be missing when the store is closed.
    fn near(&self) -> i64;

    /// Keeps others from moving this store.
    async fn lock(&mut self) -> Result<()>;

    async fn logs(&mut self) -> Result<u16>;

    async fn stand(&mut self) -> Result<SourceStand>;

    /// Looks at what the store holds. It must not be shut.
    async fn look(&mut self) -> Result<Look>;

    /// Tells whether the store has this row of a log; position 0 is no row.
    async fn has(&mut self, log: u16, position: i64, checksum: i64) -> Result<bool>;

    /// Returns the rows at one moment. It must not be shut.
    async fn rows(&mut self) -> Result<Box<dyn AuditSource>>;

    /// Closes the store for good, if it holds what was copied. A store that only this process uses is shut at once, if
    /// it holds no more than that.
    async fn close(&mut self, to: &Note, copied: &Copied) -> Result<Closing>;

    /// Shuts a closed store, if it holds exactly what was copied. `digest` is noted: what the target shows.
    async fn shut(&mut self, id: Uuid, digest: &str, copied: &Copied) -> Result<Closing>;

    /// Notes that the target is about to be opened by this opening, and makes certain that this store stays shut: that
    /// what it has noted is wherever its acknowledged events are.
    async fn note_opening(&mut self, id: Uuid, opening: Uuid) -> Result<()>;

    /// Notes that the target was opened by this opening. From then on this store is not opened again.
    async fn note_opened(&mut self, id: Uuid, opening: Uuid) -> Result<()>;

    /// Reads who keeps the store from being closed, shut or opened again.
    async fn blockers(&mut self) -> Result<Vec<Blocker>>;

    /// Opens a closed or shut store again.
    async fn reopen(&mut self, id: Uuid) -> Result<Closing>;

    /// Gives back what others wait for.
    async fn end(&mut self);
}
