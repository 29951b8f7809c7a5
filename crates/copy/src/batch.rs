//! A batch of rows for the target, and how far a copy has come.

use gesta_sql::verify::AuditRow;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::digest::Digest;

/// A name that the target gets: of a stream or a type.
#[derive(Clone, Debug)]
pub(crate) struct NewName {
    pub(crate) log: u16,
    pub(crate) id: i64,
    pub(crate) name: Box<str>,
}

/// How far a stream was scavenged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Floor {
    pub(crate) log: u16,
    pub(crate) stream: i64,
    /// The first revision that is left.
    pub(crate) revision: i64,
    /// The position of the last event that was removed.
    pub(crate) position: i64,
}

/// Rows that are written together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) streams: Vec<NewName>,
    pub(crate) types: Vec<NewName>,
    pub(crate) floors: Vec<Floor>,
    /// The rows, each with its log in the target, with the ids and the checksum that it has there.
    pub(crate) rows: Vec<(u16, AuditRow)>,
    /// The last position of each log of the target before this batch.
    pub(crate) before: Vec<i64>,
}

/// What a copy was begun with. It must be the same when the copy goes on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) incarnation: Uuid,
    /// The last position of each log that is copied.
    pub(crate) ends: Vec<i64>,
    /// The sum over the scavenged streams: a scavenge changes what is copied.
    pub(crate) floors: u64,
    /// How many rows a batch has: the batches must be the same when the copy goes on.
    pub(crate) batch_rows: usize,
}

/// How far a copy has come, after a number of batches. It follows from the source alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) origin: Origin,
    /// How many batches are written.
    pub(crate) batches: u64,
    /// The last position of each log of the source that was copied.
    pub(crate) after: Vec<i64>,
    /// The next position of each log of the target.
    pub(crate) next: Vec<i64>,
    /// The last position of each log of the target that holds a row.
    pub(crate) last: Vec<i64>,
    /// What was copied.
    pub(crate) digest: Digest,
    /// Whether the target was read back and shows the same.
    pub(crate) is_verified: bool,
    /// The incarnation with which the target is opened, once it is verified: all databases get the same one, also if
    /// the copy is killed between them.
    #[serde(default)]
    pub(crate) incarnation: Option<Uuid>,
}
