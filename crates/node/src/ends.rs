//! The end of a log, as one node tells it to another.

use bytes::Bytes;
use gesta_core::{Incarnation, KnownEnd, Position};
use prost::Message;
use uuid::Uuid;

/// The end of a log as a node knows it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EndMessage {
    #[prost(bytes = "bytes", tag = "1")]
    incarnation: Bytes,
    #[prost(uint64, tag = "2")]
    position: u64,
}

impl From<KnownEnd> for EndMessage {
    fn from(end: KnownEnd) -> Self {
        Self {
            incarnation: Bytes::copy_from_slice(end.incarnation.0.as_bytes()),
            position: end.position.0,
        }
    }
}

impl EndMessage {
    /// Reads the end; `None` if it names no incarnation.
    pub(crate) fn read(self) -> Option<KnownEnd> {
        let incarnation = Uuid::from_slice(&self.incarnation).ok()?;
        Some(KnownEnd {
            incarnation: Incarnation(incarnation),
            position: Position(self.position),
        })
    }
}
