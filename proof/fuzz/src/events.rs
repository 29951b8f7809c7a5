//! What servers answer: events, pages of them, and subscriptions.

use std::sync::Arc;

use gesta_client::core as client;
use gesta_core::{
    AllPage, Checkpoint, ContentType, EventId, EventType, LogId, Position, RecordedEvent, Resolved,
    Revision, StreamId, StreamPage, SubscriptionMessage, Tag, Tags, Timestamp,
};
use gesta_wire::event::{self, Framing};

use crate::Seed;
use crate::sample::{after, byte, id, incarnation, parts, recorded, two};

/// Documents that a client reads, and events of any bytes that a server writes.
pub(crate) fn events(mut input: &[u8]) {
    match byte(&mut input) {
        0 => {
            if let Ok(read) = event::read_event(input) {
                check(&read);
            }
        }
        1 => stream_page(input),
        2 => all_page(input),
        3 => subscription(input),
        kind => check(&any_event(kind, input)),
    }
}

/// An event is written, in a document and as a line, so that it is read as the same.
fn check(event: &RecordedEvent) {
    if !has_text(event) {
        return;
    }
    for framing in [Framing::Document, Framing::Line] {
        let mut written = Vec::new();
        event::write_event(&mut written, event, framing);
        assert!(written.len() <= event::bytes_max(event) + escaped_bytes(event));
        let is_one_line = !written.contains(&b'\n') && !written.contains(&b'\r');
        assert!(is_one_line || framing == Framing::Document);
        let read = event::read_event(&written).expect("what is written can be read");
        assert_eq!(&read, event);
    }
    let link = Some(Arc::new(event.clone()));
    let found = Resolved {
        event: Arc::new(event.clone()),
        link,
    };
    let mut written = Vec::new();
    event::write_resolved(&mut written, &found, Framing::Line);
    assert_eq!(
        &event::read_event(&written).expect("an event with a link"),
        event
    );
}

/// Only moments from 1970 to 9999 are sure to have a text.
fn has_text(event: &RecordedEvent) -> bool {
    (0..=Timestamp::MAX.0).contains(&event.created.0)
}

/// What characters that JSON escapes take more than others; names that a store has checked have few of them.
fn escaped_bytes(event: &RecordedEvent) -> usize {
    let tags = event.tags.as_slice().iter().map(Tag::as_str);
    let names = [event.stream.as_str(), event.event_type.as_str()];
    let texts = names.into_iter().chain(tags);
    texts.map(|text| 6 * text.len() + 8).sum()
}

fn stream_page(input: &[u8]) {
    let Ok(page) = event::read_stream_page(input) else {
        return;
    };
    page.events.iter().for_each(check);
    if page.events.iter().all(has_text) {
        let written = event::write_stream_page(page.clone());
        assert_eq!(event::read_stream_page(&written).expect("a page"), page);
    }
}

fn all_page(input: &[u8]) {
    let Ok(page) = event::read_all_page(input) else {
        return;
    };
    page.events.iter().for_each(check);
    if page.events.iter().all(has_text) {
        let written = event::write_all_page(page.clone());
        assert_eq!(event::read_all_page(&written).expect("a page"), page);
    }
}

/// Which messages come does not depend on the parts in which they come.
fn subscription(mut input: &[u8]) {
    let part_bytes = usize::from(byte(&mut input)) + 1;
    let whole = shown(client::subscription([input]));
    assert_eq!(shown(client::subscription(parts(input, part_bytes))), whole);
}

fn shown(messages: Vec<gesta_core::Result<SubscriptionMessage>>) -> Vec<String> {
    let shown = messages.iter().map(|message| format!("{message:?}"));
    shown.collect()
}

/// An event with any bytes, as a store of an older version or a foreign hand may have left it.
fn any_event(kind: u8, input: &[u8]) -> RecordedEvent {
    let (name, rest) = two(input);
    let (type_and_tags, rest) = two(rest);
    let (metadata, data) = two(rest);
    let name = String::from_utf8_lossy(name);
    let words = String::from_utf8_lossy(type_and_tags);
    let mut words = words.split('\n');
    let event_type = words.next().unwrap_or_default();
    let tags = words.map(|tag| Tag::from_stored(tag.into()));
    RecordedEvent {
        stream: StreamId::from_stored((&*name).into()),
        revision: Revision(u64::from(kind)),
        log: LogId(u16::from(kind)),
        position: Position(9),
        id: EventId(id(1)),
        event_type: EventType::from_stored(event_type.into()),
        created: Timestamp(i64::from(kind)),
        content_type: match kind & 1 {
            0 => ContentType::Json,
            _ => ContentType::Binary,
        },
        data: data.to_vec().into(),
        metadata: metadata.to_vec().into(),
        tags: Tags::from_stored(tags.collect()),
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let json = recorded("{ \"n\": 1.0 }", "{}");
    let binary = RecordedEvent {
        content_type: ContentType::Binary,
        ..recorded(&b"\0\xff"[..], "null")
    };
    let written = |event: &RecordedEvent| {
        let mut out = Vec::new();
        event::write_event(&mut out, event, Framing::Document);
        out
    };
    let checkpoint = Checkpoint::logs(incarnation(), vec![Position(9)]);
    let of_stream = StreamPage {
        events: vec![json.clone(), binary.clone()],
        next: Some(Revision(4)),
        end: false,
        last_revision: Revision(9),
    };
    let of_all = AllPage {
        events: vec![json.clone()],
        next: checkpoint.clone(),
        end: true,
    };
    let messages = [
        "retry: 1000\n\n: heartbeat\n\n".to_owned(),
        format!("id: {checkpoint}\nevent: event\ndata: "),
        String::from_utf8(written(&json)).expect("text"),
        format!("\n\nid: {checkpoint}\nevent: caught_up\r\ndata: {{}}\r\n\r\n"),
    ];
    let problem = r#"{"type":"urn:gesta:problem:overloaded","status":503,"detail":"full"}"#;
    vec![
        ("event", after(&[0], written(&json))),
        ("binary", after(&[0], written(&binary))),
        (
            "stream_page",
            after(&[1], event::write_stream_page(of_stream)),
        ),
        ("all_page", after(&[2], event::write_all_page(of_all))),
        ("subscription", after(&[3, 6], messages.concat())),
        (
            "error",
            after(&[3, 6], format!("event: error\ndata: {problem}\n\n")),
        ),
        (
            "any",
            after(&[4], b"cart-1\0added\ncart:1\0null\0{\"n\": [1]}"),
        ),
        (
            "deep",
            after(
                &[4],
                format!("cart-1\0added\0\0{}{}", "[".repeat(129), "]".repeat(129)),
            ),
        ),
        ("lines", after(&[4], "größe\"\\\0added\0{\n}\0[\r\n]")),
    ]
}
