//! The audit of `gesta verify`: it reads a store again and checks every promise that stored data can show.
//!
//! Why here: what a healthy store is does not depend on the database; how to scan one does. A backend implements
//! [`AuditSource`], and [`audit`] does the rest.
//! Invariants: all that a source returns belongs to one snapshot. Rows are taken raw, so that nothing on which ordinary
//! reads rely (joins, constraints, conversions) is believed.
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

pub use auditor::{AuditProgress, audit};
pub use report::{AuditReport, FINDINGS_KEPT_MAX, Finding, FindingKind, LogSummary};

/// An event row as it is stored, for the audit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditRow {
    /// Position of the event in its log.
    pub position: i64,
    /// Row id of the event's stream.
    pub stream: i64,
    /// Number of the event in its stream.
    pub revision: i64,
    /// Identity of the event; 16 bytes if the row is healthy.
    pub event_id: Bytes,
    /// Row id of the event's type.
    pub event_type: i64,
    /// Time at which the event was stored, in microseconds since 1970-01-01T00:00:00Z.
    pub created: i64,
    /// Code of the content type, as [`content_type_code`](crate::content_type_code) gives it.
    pub content_type: i64,
    /// Epoch of the writer that stored the row.
    pub writer: i64,
    /// Payload of the event.
    pub data: Bytes,
    /// Data about the event; empty if there is none.
    pub metadata: Bytes,
    /// Tags of the event, in their order.
    pub tags: Vec<String>,
    /// Checksum that is stored with the row.
    pub checksum: i64,
}

/// An interned stream name or event type as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditName {
    /// Row id of the stream or event type.
    pub id: i64,
    /// Name of the stream or event type.
    pub name: String,
    /// Checksum that is stored with the name.
    pub checksum: i64,
}

/// An entry of the tag index.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AuditTag {
    /// Text of the tag.
    pub tag: String,
    /// Position of an event that carries the tag.
    pub position: i64,
}

/// The scavenge mark of a stream: it says up to where its events were removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditFloor {
    /// Row id of the stream.
    pub stream: i64,
    /// Revision before which all events were removed.
    pub revision: i64,
    /// Position of the last event that was removed.
    pub position: i64,
}

/// One snapshot of a store, read row by row. Pages are in order of their key; an empty page is the end.
///
/// # Cancel safety
/// A source must be discarded after a future was dropped: later calls may fail with `Unavailable`.
#[async_trait]
pub trait AuditSource: Send {
    /// Returns the number of logs of the store.
    fn logs(&self) -> u16;

    /// Reads events of a log after position `after`, by position: about `limit` of them, fewer when they are large.
    /// Rows that share a position are never split over two pages. The first `after` is `i64::MIN`.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn rows(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditRow>>;

    /// Reads interned streams after row id `after`, by row id. Rows that share an id are never split over two pages.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn streams(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>>;

    /// Reads interned event types after row id `after`, by row id, as [`AuditSource::streams`] does.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn types(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>>;

    /// Reads entries of the tag index after `after`, in binary order of the tag, then by position.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn tags(
        &mut self,
        log: LogId,
        after: Option<&AuditTag>,
        limit: usize,
    ) -> Result<Vec<AuditTag>>;

    /// Reads scavenge marks of streams after row id `after`, by row id.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn floors(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditFloor>>;

    /// Reads the name of the interned stream with this row id; `None` if there is none.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn stream_name(&mut self, log: LogId, row: i64) -> Result<Option<String>>;

    /// Finds what is wrong with the entries of virtual streams, at most `limit` findings. In a healthy store the places
    /// of a stream are 0, 1, 2, … up to its next revision, and their positions grow. No position is after the one up to
    /// which the log was looked at, which is not after the end of the log.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn virtual_findings(&mut self, _limit: usize) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Returns what the database's own check of its file says; nothing if the file is healthy, or if there is no such
    /// check.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn engine_findings(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Says in what the tables are not as Gesta makes them, and ends each finding with the statements that mend it.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn schema_findings(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}
