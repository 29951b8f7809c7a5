//! Writes stored events as messages.
//!
//! Why there is an encoder of our own for one message: events are most of what a server sends, and the derived form
//! takes a map with six texts of its own for each of them. A test reads with the derived form what this encoder writes.

use bytes::{BufMut, BytesMut};
use gesta_core::{ContentType, RecordedEvent};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::Positions;
use crate::frame;
use crate::ids::{UuidForm, halves};

/// How many tenths of a microsecond, the unit in which the protocol counts time, are in a microsecond.
pub const TICKS_PER_MICROSECOND: i64 = 10;
/// Number of characters of an id with hyphens.
const UUID_TEXT_BYTES: usize = 36;

/// An event as a client is to see it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The event; `None` if it is the target of a link and cannot be read.
    pub event: Option<&'a RecordedEvent>,
    /// The link that led to the event.
    pub link: Option<&'a RecordedEvent>,
    /// How many earlier deliveries of the event failed, if a group delivers it.
    pub retries: Option<u32>,
    /// Positions of the history in which the event was read.
    pub positions: Positions,
}

impl Shown<'_> {
    /// Returns the position of the event that was read: of the link if there is one.
    fn position(&self) -> Option<u64> {
        let event = self.link.or(self.event)?;
        Some(self.positions.shown(event.position))
    }
}

/// Appends the answer of a read, or of a group, that holds one event, in its frame.
pub fn write(out: &mut BytesMut, shown: Shown<'_>, form: UuidForm) {
    let at = |event: &RecordedEvent| shown.positions.shown(event.position);
    let event = shown.event.map(|event| Body::of(event, at(event), form));
    let link = shown.link.map(|event| Body::of(event, at(event), form));
    let position = shown.position();
    let content = event.as_ref().map_or(0, |body| nested_len(1, body.len))
        + link.as_ref().map_or(0, |body| nested_len(2, body.len))
        + position.map_or(0, |position| number_len(3, position))
        + shown
            .retries
            .map_or(0, |retries| number_len(5, retries.into()));
    frame::write_head(out, nested_len(1, content));
    nested(out, 1, content);
    for (field, body) in [(1, event), (2, link)] {
        if let Some(body) = body {
            nested(out, field, body.len);
            body.write(out);
        }
    }
    if let Some(position) = position {
        number(out, 3, position);
    }
    if let Some(retries) = shown.retries {
        number(out, 5, retries.into());
    }
}

/// One event, with the lengths of its parts.
struct Body<'a> {
    event: &'a RecordedEvent,
    /// Position of the event as the client sees it.
    position: u64,
    form: UuidForm,
    /// Time of the event as text, in tenths of a microsecond.
    created: String,
    id_len: usize,
    len: usize,
}

impl<'a> Body<'a> {
    fn of(event: &'a RecordedEvent, position: u64, form: UuidForm) -> Self {
        let created = (event
            .created
            .as_micros()
            .saturating_mul(TICKS_PER_MICROSECOND))
        .to_string();
        let id_len = match form {
            UuidForm::Text => nested_len(2, UUID_TEXT_BYTES),
            UuidForm::Structured => nested_len(1, halves_len(event)),
        };
        let mut body = Self {
            event,
            position,
            form,
            created,
            id_len,
            len: 0,
        };
        body.len = nested_len(1, id_len)
            + nested_len(2, nested_len(3, event.stream.as_str().len()))
            + unless_zero(3, event.revision.0)
            + unless_zero(4, position)
            + unless_zero(5, position)
            + body
                .entries()
                .map(|(key, value)| nested_len(6, entry_len(key, value)))
                .sum::<usize>()
            + unless_empty(7, &event.metadata)
            + unless_empty(8, &event.data);
        body
    }

    fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        let content_type = match self.event.content_type {
            ContentType::Json => "application/json",
            ContentType::Binary => "application/octet-stream",
        };
        [
            ("content-type", content_type),
            ("created", self.created.as_str()),
            ("type", self.event.event_type.as_str()),
        ]
        .into_iter()
    }

    fn write(&self, out: &mut BytesMut) {
        let event = self.event;
        nested(out, 1, self.id_len);
        self.write_id(out);
        let name = event.stream.as_str();
        nested(out, 2, nested_len(3, name.len()));
        bytes(out, 3, name.as_bytes());
        for (field, value) in [
            (3, event.revision.0),
            (4, self.position),
            (5, self.position),
        ] {
            if value != 0 {
                number(out, field, value);
            }
        }
        for (key, value) in self.entries() {
            nested(out, 6, entry_len(key, value));
            bytes(out, 1, key.as_bytes());
            bytes(out, 2, value.as_bytes());
        }
        for (field, value) in [(7, &event.metadata), (8, &event.data)] {
            if !value.is_empty() {
                bytes(out, field, value);
            }
        }
    }

    fn write_id(&self, out: &mut BytesMut) {
        let id = self.event.id.0;
        match self.form {
            UuidForm::Text => {
                let mut text = [0; UUID_TEXT_BYTES];
                bytes(out, 2, id.hyphenated().encode_lower(&mut text).as_bytes());
            }
            UuidForm::Structured => {
                nested(out, 1, halves_len(self.event));
                let (most, least) = halves(id);
                for (field, half) in [(1, most), (2, least)] {
                    if half != 0 {
                        number(out, field, half.cast_unsigned());
                    }
                }
            }
        }
    }
}

fn halves_len(event: &RecordedEvent) -> usize {
    let (most, least) = halves(event.id.0);
    unless_zero(1, most.cast_unsigned()) + unless_zero(2, least.cast_unsigned())
}

fn entry_len(key: &str, value: &str) -> usize {
    nested_len(1, key.len()) + nested_len(2, value.len())
}

fn nested_len(field: u32, len: usize) -> usize {
    key_len(field) + encoded_len_varint(len as u64) + len
}

fn number_len(field: u32, value: u64) -> usize {
    key_len(field) + encoded_len_varint(value)
}

fn unless_zero(field: u32, value: u64) -> usize {
    if value == 0 {
        0
    } else {
        number_len(field, value)
    }
}

fn unless_empty(field: u32, value: &[u8]) -> usize {
    if value.is_empty() {
        0
    } else {
        nested_len(field, value.len())
    }
}

fn nested(out: &mut BytesMut, field: u32, len: usize) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}

fn number(out: &mut BytesMut, field: u32, value: u64) {
    encode_key(field, WireType::Varint, out);
    encode_varint(value, out);
}

fn bytes(out: &mut BytesMut, field: u32, value: &[u8]) {
    nested(out, field, value.len());
    out.put_slice(value);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::messages::groups::{self, read_resp::read_event::Count};
    use crate::messages::streams::ReadResp;
    use crate::messages::streams::read_resp::Content;
    use crate::messages::streams::read_resp::read_event::Position as At;
    use bytes::Bytes;
    use gesta_core::{EventId, EventType, LogId, Position, Revision, StreamId, Tags, Timestamp};
    use proptest::prelude::*;
    use prost::Message;
    use uuid::Uuid;

    /// Makes an event of this type.
    pub(crate) fn event(event_type: &str) -> RecordedEvent {
        RecordedEvent {
            stream: StreamId::new("cart-1").expect("valid"),
            revision: Revision(3),
            log: LogId(0),
            position: Position(9),
            id: EventId(Uuid::from_u128(5)),
            event_type: EventType::from_stored(event_type.into()),
            created: Timestamp(1_700_000_000_000_000),
            content_type: ContentType::Json,
            data: Bytes::from_static(b"{}"),
            metadata: Bytes::new(),
            tags: Tags::NONE,
        }
    }

    fn read(bytes: &BytesMut) -> ReadResp {
        let length = u32::from_be_bytes(bytes[1..5].try_into().expect("four bytes"));
        assert_eq!(bytes.len() - 5, length as usize);
        ReadResp::decode(&bytes[5..]).expect("a message")
    }

    proptest! {
        /// Goal: the schema reads what this encoder writes.
        #[test]
        fn events_are_read_as_they_were_written(
            id in any::<u128>(),
            revision in any::<u64>(),
            position in any::<u64>(),
            created in 0_i64..=Timestamp::MAX.0,
            json in any::<bool>(),
            data in prop::collection::vec(any::<u8>(), 0..300),
            metadata in prop::collection::vec(any::<u8>(), 0..300),
            name in "[^\\p{C}]{1,200}",
            text in any::<bool>(),
            linked in any::<bool>(),
        ) {
            let form = if text { UuidForm::Text } else { UuidForm::Structured };
            let link = event("$>");
            let event = RecordedEvent {
                stream: StreamId::new(name.as_str()).expect("valid"),
                revision: Revision(revision),
                position: Position(position),
                id: EventId(Uuid::from_u128(id)),
                created: Timestamp(created),
                content_type: if json { ContentType::Json } else { ContentType::Binary },
                data: data.clone().into(),
                metadata: metadata.clone().into(),
                ..event("added")
            };
            let mut out = BytesMut::new();
            let shown = Shown { event: Some(&event), link: linked.then_some(&link), retries: None, positions: Positions::default() };
            write(&mut out, shown, form);
            let Some(Content::Event(read)) = read(&out).content else { panic!("an event") };
            let at = if linked { link.position.0 } else { position };
            prop_assert_eq!(read.position, Some(At::CommitPosition(at)));
            prop_assert_eq!(read.link.is_some(), linked);
            let read = read.event.expect("the event");
            let (id, found) = crate::ids::read_uuid("id", read.id.as_ref()).expect("an id");
            prop_assert_eq!((EventId(id), found), (event.id, form));
            prop_assert_eq!(read.stream_identifier.expect("a name").stream_name, name.as_bytes());
            prop_assert_eq!(read.stream_revision, revision);
            prop_assert_eq!((read.commit_position, read.prepare_position), (position, position));
            prop_assert_eq!(read.metadata.len(), 3);
            prop_assert_eq!(&read.metadata["type"], "added");
            prop_assert_eq!(&read.metadata["created"], &(created * 10).to_string());
            let content = if json { "application/json" } else { "application/octet-stream" };
            prop_assert_eq!(&read.metadata["content-type"], content);
            prop_assert_eq!(read.data, data);
            prop_assert_eq!(read.custom_metadata, metadata);
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_has_no_event() {
        let mut out = BytesMut::new();
        let link = event("$>");
        let shown = Shown {
            event: None,
            link: Some(&link),
            retries: Some(7),
            positions: Positions::default(),
        };
        write(&mut out, shown, UuidForm::Text);
        let delivered = groups::ReadResp::decode(&out[5..]).expect("the same message of groups");
        let Some(groups::read_resp::Content::Event(delivered)) = delivered.content else {
            panic!("an event");
        };
        assert_eq!(delivered.count, Some(Count::RetryCount(7)));
        let Some(Content::Event(read)) = read(&out).content else {
            panic!("an event");
        };
        assert!(read.event.is_none());
        assert_eq!(read.link.expect("the link").stream_revision, 3);
    }
}
