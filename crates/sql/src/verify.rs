//! The audit of `gesta verify`: re-reads a store and checks every promise that stored data can show.
//!
//! Why here: what a healthy store is does not depend on the database; how to scan one does. A backend
//! implements [`AuditSource`], [`audit`] does the rest.
//! Invariants: all that a source returns belongs to one snapshot. Rows are taken raw, so that nothing that
//! ordinary reads rely on (joins, constraints, conversions) is believed.
//! Not here: repair. Memory: about 100 bytes per stream, 50 per event type and per 1,024 tagged positions.

mod auditor;
mod report;
mod tags;
#[cfg(test)]
mod tests;
mod unreadable;

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::{LogId, Result};

pub use auditor::{Progress, audit};
pub use report::{FINDINGS_KEPT_MAX, Finding, FindingKind, LogSummary, Report};

/// An event row as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditRow {
    /// Position.
    pub position: i64,
    /// Row id of the stream.
    pub stream: i64,
    /// Revision.
    pub revision: i64,
    /// Event id; 16 bytes if healthy.
    pub event_id: Bytes,
    /// Row id of the event type.
    pub event_type: i64,
    /// Microseconds since 1970.
    pub created: i64,
    /// Code of the content type.
    pub content_type: i64,
    /// Epoch of the connection that wrote it.
    pub writer: i64,
    /// Payload.
    pub data: Bytes,
    /// Data about the event.
    pub metadata: Bytes,
    /// Tags in order.
    pub tags: Vec<String>,
    /// The stored checksum.
    pub checksum: i64,
}

/// An interned stream name or event type as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditName {
    /// Row id.
    pub id: i64,
    /// The name.
    pub name: String,
    /// The stored checksum.
    pub checksum: i64,
}

/// An entry of the tag index.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AuditTag {
    /// The tag.
    pub tag: String,
    /// Position of an event that carries it.
    pub position: i64,
}

/// How far a stream was scavenged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditFloor {
    /// Row id of the stream.
    pub stream: i64,
    /// All revisions below this one were removed.
    pub revision: i64,
    /// Position of the last removed event.
    pub position: i64,
}

/// One snapshot of a store, row by row. Pages are in order of their key; an empty page is the end.
#[async_trait]
pub trait AuditSource: Send {
    /// Number of logs of the store.
    fn logs(&self) -> u16;

    /// Events of a log above position `after`, by position: about `limit` of them, fewer when they are large.
    /// Rows that share a position are never split over two pages. `after` starts at `i64::MIN`.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn rows(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditRow>>;

    /// Interned streams above row id `after`, by row id. Rows that share an id are never split over two pages.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn streams(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>>;

    /// Interned event types above row id `after`, by row id, as [`AuditSource::streams`].
    ///
    /// # Errors
    /// `Unavailable`.
    async fn types(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>>;

    /// Entries of the tag index after `after`, in binary order of the tag, then by position.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn tags(
        &mut self,
        log: LogId,
        after: Option<&AuditTag>,
        limit: usize,
    ) -> Result<Vec<AuditTag>>;

    /// Scavenged streams above row id `after`, by row id.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn floors(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditFloor>>;

    /// Name of the interned stream with this row id, if there is one.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn stream_name(&mut self, log: LogId, row: i64) -> Result<Option<String>>;

    /// What is wrong with the entries of virtual streams, at most `limit` findings: places of a stream are 0, 1, 2, … up
    /// to its next revision, their positions grow, and none is above the position up to which the log was looked at,
    /// which is not above the end of the log.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn virtual_findings(&mut self, _limit: usize) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// What the database's own check of its file says; nothing if it is healthy, or has no such check.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn engine_findings(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}
