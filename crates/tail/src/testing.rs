//! Events for the unit tests.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::backend::{Batch, LogEnd, Row, RowId, WriterEpoch};
use gesta_core::{
    ContentType, EventId, EventType, LogId, Position, RecordedEvent, Revision, SharedEvent,
    StreamId, Tag, Tags, Timestamp,
};

pub(crate) fn event(position: u64, stream: &str) -> SharedEvent {
    Arc::new(RecordedEvent {
        stream: StreamId::new(stream).expect("valid"),
        revision: Revision(position - 1),
        log: LogId(0),
        position: Position(position),
        id: EventId::random(),
        event_type: EventType::new("tested").expect("valid"),
        created: Timestamp(1),
        content_type: ContentType::Json,
        data: Bytes::from_static(b"{}"),
        metadata: Bytes::new(),
        tags: Tags::NONE,
    })
}

/// Makes an event without data to speak of, but with 8 KiB of tags.
pub(crate) fn tagged(position: u64) -> SharedEvent {
    let tag = |n: u32| Tag::new(format!("{n:0>256}")).expect("valid");
    let tags = Tags::new((0..32).map(tag).collect()).expect("valid");
    Arc::new(RecordedEvent {
        tags,
        ..Arc::unwrap_or_clone(event(position, "a"))
    })
}

/// Makes a batch of events at the positions of this range, which follows the row before them.
pub(crate) fn batch(positions: std::ops::RangeInclusive<u64>) -> Batch {
    let after = LogEnd {
        position: Position(positions.start() - 1),
        writer: WriterEpoch(7),
        created: Timestamp(1),
    };
    let rows = positions.map(|position| {
        let event = event(position, "a");
        Row {
            position: event.position,
            stream: event.stream.clone(),
            stream_row: RowId(1),
            revision: event.revision,
            id: event.id,
            event_type: event.event_type.clone(),
            type_row: RowId(1),
            created: event.created,
            content_type: event.content_type,
            data: event.data.clone(),
            packed: None,
            metadata: event.metadata.clone(),
            tags: event.tags.clone(),
        }
    });
    Batch {
        log: LogId(0),
        after,
        rows: rows.collect(),
        new_streams: Vec::new(),
        new_types: Vec::new(),
    }
}
