//! What an audit found.

use std::fmt;

use gesta_core::LogId;

/// Most findings that a report keeps; further ones are only counted.
pub const FINDINGS_KEPT_MAX: usize = 1_000;

/// Which promise is broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// Revisions of a stream are not 0, 1, 2, … (C2).
    Revision,
    /// Positions of a log are not unique, or one is missing that scavenging does not explain (C3).
    Position,
    /// A row or name is not what was stored.
    Checksum,
    /// A row names a stream or event type that does not exist, or the wrong one.
    Link,
    /// The row id of a stream or event type is not the position of its first event.
    RowId,
    /// The tag index and the events disagree.
    Tags,
    /// `created` decreases along positions.
    Created,
    /// A stream, event type or scavenge mark that no event needs.
    Orphan,
    /// The database's own check of its file failed.
    Engine,
    /// Entries of virtual streams contradict each other, or the log.
    Virtual,
    /// Two streams or event types have the same name, or a stream lies in the wrong log.
    Name,
}

impl FindingKind {
    /// One word for people and machines.
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
        }
    }
}

/// One broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which promise.
    pub kind: FindingKind,
    /// In which log.
    pub log: LogId,
    /// At which position, if at one.
    pub position: Option<i64>,
    /// Row id of the stream, if one is concerned.
    pub stream_row: Option<i64>,
    /// Its name, if it has one.
    pub stream: Option<String>,
    /// The revision, if one is concerned.
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

/// What one log holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogSummary {
    /// The log.
    pub log: LogId,
    /// Events read.
    pub events: u64,
    /// Interned streams.
    pub streams: u64,
    /// Interned event types.
    pub types: u64,
    /// Entries of the tag index.
    pub tags: u64,
    /// Events that scavenging removed.
    pub removed: u64,
    /// Position of the last event; 0 if the log is empty.
    pub last_position: i64,
    /// Bytes of data and metadata.
    pub payload_bytes: u64,
}

/// The result of an audit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// What was read, by log.
    pub logs: Vec<LogSummary>,
    /// The first findings, at most [`FINDINGS_KEPT_MAX`].
    pub findings: Vec<Finding>,
    /// All findings, counted.
    pub findings_total: u64,
}

impl Report {
    /// True if nothing is wrong.
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
