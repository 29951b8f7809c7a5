//! What only simulations, fuzzing and benchmarks use: what the logs of a process send together, where they lie, and the
//! pure parts of reading and writing rows.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use gesta_core::backend::{Batch, Signal, WriterEpoch};
use gesta_core::{ContentType, Result, StreamId};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::append::columns::{Column, Field};
use crate::append::prepared::Prepared;
use crate::compression::{self, Compression};
use crate::message::{self, Message};

pub use crate::append::gather::{
    BYTES_MAX, BatchVerdict, Broken, EVENTS_MAX, Gather, Piece, QueueId, RowPlace, Said,
    StatementPart, Ticket,
};

/// Where the logs lie, as far as a process knows, and how one moves.
pub mod several {
    pub use crate::log_map::KeepsMap;
    pub use crate::several::backend::Several;
    pub use crate::several::moving::{Fact, Goal, Loss, Step, most_complete, next_step};
    pub use crate::several::route::{DatabasePart, Routes};
}

/// The code that tells that data were compressed here.
pub const PACKED: i16 = compression::PACKED;

/// Compresses data, if it is worth it.
#[must_use]
pub fn pack(stream: &StreamId, content_type: ContentType, data: &[u8]) -> Option<Vec<u8>> {
    Compression::Client.pack(stream, content_type, data)
}

/// Returns the content type and the data as they were appended, from those that are stored.
///
/// # Errors
/// A text that says what is wrong.
pub fn unpack(code: i16, stored: &Bytes) -> std::result::Result<(i64, Bytes), String> {
    compression::unpack(code, stored)
}

/// Returns the length of the data as it was appended, as far as the stored bytes tell it.
#[must_use]
pub fn length(code: i16, stored: &[u8]) -> usize {
    compression::length(code, stored)
}

/// Reads a message of another process; `None` if it is not understood, or tells nothing of appends.
#[must_use]
pub fn signal(process: Uuid, payload: &str) -> Option<Signal> {
    match message::from_payload(process, payload)? {
        Message::Signal(signal) => Some(signal),
        Message::Incarnation(_) => None,
    }
}

/// Writes a message to other processes; `None` if it is not sent.
#[must_use]
pub fn payload(process: Uuid, signal: &Signal) -> Option<String> {
    message::to_payload(process, signal)
}

/// The columns of a batch without tags and new names, with their types.
const COLUMNS: [(Field, Type); 10] = [
    (Field::Position, Type::INT8_ARRAY),
    (Field::Stream, Type::INT8_ARRAY),
    (Field::Revision, Type::INT8_ARRAY),
    (Field::EventType, Type::INT8_ARRAY),
    (Field::Created, Type::TIMESTAMPTZ_ARRAY),
    (Field::Checksum, Type::INT8_ARRAY),
    (Field::EventId, Type::UUID_ARRAY),
    (Field::ContentType, Type::INT2_ARRAY),
    (Field::Data, Type::BYTEA_ARRAY),
    (Field::Metadata, Type::BYTEA_ARRAY),
];

/// Appends a batch as the arrays of its statement to `out`, its checksums computed.
///
/// # Errors
/// `InvalidArgument` if the batch contradicts itself.
pub fn encode(batch: &Arc<Batch>, epoch: WriterEpoch, out: &mut BytesMut) -> Result<()> {
    let prepared = Prepared::new(Arc::clone(batch), batch.log, epoch)?;
    let parts = [StatementPart {
        log: batch.log,
        batches: vec![Arc::new(prepared)],
    }];
    for (field, kind) in &COLUMNS {
        let column = Column {
            parts: &parts,
            field: *field,
        };
        let written = column.to_sql(kind, out);
        debug_assert!(written.is_ok(), "writing to memory fails");
    }
    Ok(())
}
