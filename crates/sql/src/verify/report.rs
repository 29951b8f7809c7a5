//! The report of an audit: what was read, and what is wrong.

use std::fmt;

use gesta_core::LogId;

/// Largest number of findings that a report keeps; further ones are only counted.
pub const FINDINGS_KEPT_MAX: usize = 1_000;

/// A promise of a healthy store that can be broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// The revisions of a stream are not 0, 1, 2, … (C2).
    Revision,
    /// The positions of a log are not unique, or one is missing that scavenging does not explain (C3).
    Position,
    /// A row or name is not what was stored.
    Checksum,
    /// A row names a stream or event type that does not exist, or the wrong one.
    Link,
    /// The row id of a stream or event type is not the position of its first event.
    RowId,
    /// The tag index and the events differ.
    Tags,
    /// The time `created` decreases along the positions of a log.
    Created,
    /// The store holds a stream, event type or scavenge mark that no event needs.
    Orphan,
    /// The database's own check of its file failed.
    Engine,
    /// Entries of virtual streams contradict each other, or the log.
    Virtual,
    /// Two streams or event types have the same name, or a stream lies in the wrong log.
    Name,
    /// The tables are not as Gesta makes them, so that what is stored can be changed, or something else is done with
    /// each append. No event is damaged by that alone; the text ends with the statements that mend it.
    Schema,
}

impl FindingKind {
    /// Returns the kind in one word, for people and machines.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FindingKind::Revision => "revision",
            FindingKind::Position => "position",
            FindingKind::Checksum => "checksum",
            FindingKind::Link => "link",
            FindingKind::RowId => "row_id",
            FindingKind::Tags => "tags",
            FindingKind::Created => "created",
            FindingKind::Orphan => "orphan",
            FindingKind::Engine => "engine",
            FindingKind::Virtual => "virtual",
            FindingKind::Name => "name",
            FindingKind::Schema => "schema",
        }
    }
}

/// A broken promise of one log or one event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Promise that is broken.
    pub kind: FindingKind,
    /// Log in which it is broken; 0 if no log is concerned.
    pub log: LogId,
    /// Position of the event that is concerned, if one is.
    pub position: Option<i64>,
    /// Row id of the stream that is concerned, if one is.
    pub stream_row: Option<i64>,
    /// Name of that stream, if it has one.
    pub stream: Option<String>,
    /// Revision of the event that is concerned, if one is.
    pub revision: Option<i64>,
    /// What is wrong, with the values.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: log {}", self.kind.as_str(), self.log)?;
        if let Some(position) = self.position {
            write!(f, ", position {position}")?;
        }
        match (&self.stream, self.stream_row) {
            (Some(name), _) => write!(f, ", stream {name}")?,
            (None, Some(row)) => write!(f, ", stream row {row}")?,
            (None, None) => {}
        }
        if let Some(revision) = self.revision {
            write!(f, ", revision {revision}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// What one log holds, as the audit has read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogSummary {
    /// Number of the log.
    pub log: LogId,
    /// Number of events that were read.
    pub events: u64,
    /// Number of interned streams.
    pub streams: u64,
    /// Number of interned event types.
    pub types: u64,
    /// Number of entries of the tag index.
    pub tags: u64,
    /// Number of events that scavenging removed.
    pub removed: u64,
    /// Position of the last event; 0 if the log is empty.
    pub last_position: i64,
    /// Size of data and metadata of all events, in bytes.
    pub payload_bytes: u64,
}

/// The result of an audit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditReport {
    /// What was read, one entry per log.
    pub logs: Vec<LogSummary>,
    /// The first findings, at most [`FINDINGS_KEPT_MAX`].
    pub findings: Vec<Finding>,
    /// Number of all findings, also of those that are not kept.
    pub findings_total: u64,
}

impl AuditReport {
    /// Returns true if nothing is wrong.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.findings_total == 0
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.findings_total += 1;
        if self.findings.len() < FINDINGS_KEPT_MAX {
            self.findings.push(finding);
        }
    }
}
