//! A batch of rows for the target, and how far a copy has come.

use std::collections::BTreeSet;

use gesta_core::{Clock, Incarnation, Position, SystemClock};
use gesta_sql::verify::AuditRow;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::digest::{Compared, Digest};

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
    /// The checksum of the row at each of these ends; 0 if there is none. A move has its own marks, and none here, nor
    /// has what an earlier version has begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) marks: Vec<i64>,
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
    /// The checksum of the row at each of these positions; 0 if there is none. Empty as in [`Origin::marks`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) marks: Vec<i64>,
    /// The next position of each log of the target.
    pub(crate) next: Vec<i64>,
    /// The last position of each log of the target that holds a row.
    pub(crate) last: Vec<i64>,
    /// What was copied.
    pub(crate) digest: Digest,
    /// The consumer groups that were deleted in what was copied.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) deleted_groups: BTreeSet<String>,
    /// Whether the target was read back and shows the same.
    pub(crate) is_verified: bool,
    /// The incarnation with which the target is opened, once it is verified: all databases get the same one, also if
    /// the copy is killed between them.
    #[serde(default)]
    pub(crate) incarnation: Option<Uuid>,
    /// What a move needs beside; `None` for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moving: Option<Moving>,
}

/// What belongs to a move, and not to a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Moving {
    pub(crate) id: Uuid,
    /// The move was taken back: this target is never opened.
    pub(crate) is_undone: bool,
    /// The id of the opening of the target: given when all is copied and the source is shut, and noted there before the
    /// target is opened. So a target that was set back to a moment before, or is a copy of one, is known by its lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) opening: Option<Uuid>,
    /// How many events of the source were scavenged when the move began.
    pub(crate) scavenged: u64,
    /// The checksum of the last row of each log that was copied; 0 if there is none.
    pub(crate) marks: Vec<i64>,
    /// Whether the source has virtual streams.
    pub(crate) virtual_streams: bool,
    /// Up to where the target was read back.
    pub(crate) compared: Compared,
}

impl State {
    /// Tells whether all that was copied for a move was read back.
    pub(crate) fn is_compared(&self) -> bool {
        let moving = self.moving.as_ref();
        moving.is_some_and(|moving| {
            moving.compared.after == self.after && moving.compared.digest == self.digest
        })
    }

    /// Returns the incarnation of the target of a move: that of the source, or one that follows it, as after a restore.
    pub(crate) fn incarnation_of_target(&self) -> Incarnation {
        let origin = Incarnation(self.origin.incarnation);
        let moving = self.moving.as_ref();
        if !moving.is_some_and(|moving| moving.virtual_streams) {
            return origin;
        }
        let end = self.after.iter().copied().max().unwrap_or(0);
        origin.after(Position(end.cast_unsigned()), SystemClock.now())
    }
}
