//! What a reader can see of a store, as a few numbers: equal for two stores that show the same events, whatever the
//! order in which their rows are read.
//!
//! How: a sum of 64-bit hashes, one for each event, over the name of its stream, its revision, id, type, time, content
//! type, data, metadata and tags; and another sum over how far streams were scavenged. Where positions are kept, the
//! checksums of the rows are summed too, which cover position, log and writer.

use gesta_core::LogId;
use gesta_core::backend::RowId;
use gesta_sql::verify::AuditRow;
use gesta_sql::{RawRow, name_checksum};
use serde::{Deserialize, Serialize};

/// What a store shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Digest {
    /// Number of events.
    pub events: u64,
    /// Number of streams that have, or had, an event.
    pub streams: u64,
    /// Number of entries in the index of tags.
    pub tags: u64,
    /// Sum over the events.
    pub content: u64,
    /// Sum over the streams that were scavenged.
    pub floors: u64,
    /// Sum over the rows with their places; of stores with different numbers of logs they differ.
    pub places: u64,
}

/// Up to where a target was read back, and what it has shown.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Compared {
    /// The last position of each log that was read.
    pub(crate) after: Vec<i64>,
    /// How many entries the index of tags of each log has up to there.
    pub(crate) tags: Vec<u64>,
    pub(crate) digest: Digest,
}

/// Returns the hash of the name of a stream or type, which stands for it in the digest.
pub(crate) fn name_hash(name: &str) -> i64 {
    name_checksum(LogId(0), RowId(0), name)
}

impl Digest {
    /// Adds an event. `stream` and `event_type` are the hashes of the names.
    pub(crate) fn add(&mut self, row: &AuditRow, stream: i64, event_type: i64, checksum: i64) {
        let mut event_id = [0; 16];
        if row.event_id.len() == event_id.len() {
            event_id.copy_from_slice(&row.event_id);
        }
        let seen = RawRow {
            log: LogId(0),
            position: 0,
            stream,
            revision: row.revision,
            event_id: &event_id,
            event_type,
            created: row.created,
            content_type: row.content_type,
            writer: 0,
            data: &row.data,
            metadata: &row.metadata,
        };
        let hash = seen.checksum(row.tags.iter().map(String::as_str));
        self.events += 1;
        self.tags += row.tags.len() as u64;
        self.content = self.content.wrapping_add(hash.cast_unsigned());
        self.places = self.places.wrapping_add(checksum.cast_unsigned());
    }

    /// Adds a stream that was scavenged up to a revision.
    pub(crate) fn add_floor(&mut self, stream: &str, revision: i64) {
        let hash = name_checksum(LogId(0), RowId(revision.cast_unsigned()), stream);
        self.floors = self.floors.wrapping_add(hash.cast_unsigned());
    }

    /// Returns the digest without the places, as it is compared between stores with different numbers of logs.
    #[must_use]
    pub fn without_places(self) -> Self {
        Self { places: 0, ..self }
    }
}

/// Computes the checksum that a row must carry; `None` if its id is no id.
pub(crate) fn checksum_of(log: u16, row: &AuditRow) -> Option<i64> {
    let raw = RawRow {
        log: LogId(log),
        position: row.position,
        stream: row.stream,
        revision: row.revision,
        event_id: row.event_id.as_ref().try_into().ok()?,
        event_type: row.event_type,
        created: row.created,
        content_type: row.content_type,
        writer: row.writer,
        data: &row.data,
        metadata: &row.metadata,
    };
    Some(raw.checksum(row.tags.iter().map(String::as_str)))
}
