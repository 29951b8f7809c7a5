//! Events for the unit tests.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::{
    ContentType, EventId, EventType, LogId, Position, RecordedEvent, Revision, SharedEvent,
    StreamId, Tags, Timestamp,
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
