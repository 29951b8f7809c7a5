//! Encoding: a batch of events becomes the arrays of its statement, with the checksums of its rows.

#![allow(
    clippy::expect_used,
    reason = "test code: a panic is how a benchmark fails"
)]

use std::hint::black_box;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use gesta_core::backend::{Batch, LogEnd, Row, RowId, WriterEpoch};
use gesta_core::{
    ContentType, EventId, EventType, LogId, Position, Revision, StreamId, Tags, Timestamp,
};
use gesta_kit::bench::{self, Work};
use gesta_postgres::core as postgres;

/// Events of a batch, as many as one holds that leaves near the database.
const EVENTS: u32 = 200;
/// Batches of a round.
const BATCHES: u32 = 100;
/// The size of the data of an event, in bytes.
const DATA_BYTES: usize = 200;

fn batch() -> Arc<Batch> {
    let event_type = EventType::new("item-added").expect("valid");
    let row = |number: u32| Row {
        position: Position(u64::from(number) + 1),
        stream: StreamId::new(format!("cart-{number}")).expect("valid"),
        stream_row: RowId(u64::from(number) + 1),
        revision: Revision(7),
        id: EventId::random(),
        event_type: event_type.clone(),
        type_row: RowId(1),
        created: Timestamp(1_790_000_000_000_000),
        content_type: ContentType::Json,
        data: Bytes::from(vec![b'7'; DATA_BYTES]),
        packed: None,
        metadata: Bytes::from_static(br#"{"$correlationId":"x"}"#),
        tags: Tags::NONE,
    };
    Arc::new(Batch {
        log: LogId(0),
        after: LogEnd::default(),
        rows: (0..EVENTS).map(row).collect(),
        new_streams: Vec::new(),
        new_types: Vec::new(),
    })
}

fn main() {
    let batch = &batch();
    let prepare = || -> Box<dyn FnOnce() + '_> {
        let mut out = BytesMut::with_capacity(1 << 20);
        Box::new(move || {
            for _ in 0..BATCHES {
                out.clear();
                postgres::encode(black_box(batch), WriterEpoch(1), &mut out).expect("a good batch");
                black_box(&out);
            }
        })
    };
    bench::main(&[Work {
        what: "an event as arrays of a statement",
        times: EVENTS * BATCHES,
        prepare: &prepare,
    }]);
}
