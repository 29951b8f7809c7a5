//! Decoding: the body of an append becomes events, and so does a page that a client has read.

#![allow(
    clippy::expect_used,
    reason = "test code: a panic is how a benchmark fails"
)]

use std::hint::black_box;

use bytes::Bytes;
use gesta_core::{
    ContentType, EventData, EventId, EventType, ExpectedRevision, LogId, Position, RecordedEvent,
    Revision, StreamAppend, StreamId, StreamPage, Tags, Timestamp,
};
use gesta_kit::bench::{self, Work};
use gesta_server::core as server;
use gesta_wire::{event, request};

/// Events of a body and of a page, and how many of them are decoded in a round.
const EVENTS: u32 = 10;
const BODIES: u32 = 1_000;
/// About 200 bytes.
const DATA: &str = r#"{"item":"book","title":"On the Nature of Things","price":{"amount":"12.50","currency":"EUR"},"n":1,"added_by":"0189-0dd5-ea3f","from":{"shelf":7,"place":[1,2,3]},"comment":"as a present, please"}"#;

fn stream() -> StreamId {
    StreamId::new("cart-1").expect("valid")
}

fn body() -> Bytes {
    let event_type = EventType::new("item-added").expect("valid");
    let event = |_| EventData::json(event_type.clone(), DATA).with_id(EventId::random());
    request::append_to(&StreamAppend {
        stream: stream(),
        expected: ExpectedRevision::Exact(Revision(7)),
        events: (0..EVENTS).map(event).collect(),
    })
}

fn page() -> Bytes {
    let event = |number: u32| RecordedEvent {
        stream: stream(),
        revision: Revision(u64::from(number)),
        log: LogId(0),
        position: Position(u64::from(number) + 1),
        id: EventId::random(),
        event_type: EventType::new("item-added").expect("valid"),
        created: Timestamp(1_790_000_000_000_000),
        content_type: ContentType::Json,
        data: Bytes::from_static(DATA.as_bytes()),
        metadata: Bytes::new(),
        tags: Tags::NONE,
    };
    event::write_stream_page(StreamPage {
        events: (0..EVENTS).map(event).collect(),
        next: None,
        end: true,
        last_revision: Revision(9),
    })
}

fn main() {
    let (body, page) = (&body(), &page());
    let of_bodies = || -> Box<dyn FnOnce() + '_> {
        Box::new(move || {
            for _ in 0..BODIES {
                let append = server::append_to(stream(), black_box(body.clone()), true);
                black_box(append.expect("a good body"));
            }
        })
    };
    let of_pages = || -> Box<dyn FnOnce() + '_> {
        Box::new(move || {
            for _ in 0..BODIES {
                let read = event::read_stream_page(black_box(page));
                black_box(read.expect("a good page"));
            }
        })
    };
    let times = EVENTS * BODIES;
    bench::main(&[
        Work {
            what: "an event of the body of an append",
            times,
            prepare: &of_bodies,
        },
        Work {
            what: "an event of a page in JSON",
            times,
            prepare: &of_pages,
        },
    ]);
}
