//! Protocol Buffers.

use gesta_core::ContentType;
use gesta_entity::scenario::round_trips;
use gesta_entity::{CodecError, EventCodec, ProtoEvents, ProtoEventsBuilder, Stored};
use proptest::prelude::*;
use prost::Message;

use crate::events::{
    decode, hostile, malformed, read_or_malformed, reads_nothing_else, unwritable,
};
use crate::golden;

#[derive(Clone, PartialEq, Message)]
struct Created {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(message, repeated, tag = "2")]
    seats: Vec<Seat>,
    #[prost(bytes = "bytes", tag = "3")]
    picture: bytes::Bytes,
    #[prost(map = "string, double", tag = "4")]
    prices: std::collections::HashMap<String, f64>,
    #[prost(message, optional, boxed, tag = "5")]
    follows: Option<Box<Created>>,
}

#[derive(Clone, PartialEq, Message)]
struct Seat {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(sint64, tag = "2")]
    row: i64,
}

/// How a seat was stored once.
#[derive(Clone, PartialEq, Message)]
struct SeatV1 {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Event {
    Created(Created),
    Reserved(Seat),
    Closed(()),
    /// Declared nowhere.
    Forgotten,
}

const TYPES: [&str; 3] = ["created", "seat-reserved.v2", "closed"];

fn builder() -> ProtoEventsBuilder<Event> {
    ProtoEvents::<Event>::new()
        .event("created", Event::Created, |event| match event {
            Event::Created(message) => Some(message),
            _ => None,
        })
        .event("seat-reserved.v2", Event::Reserved, |event| match event {
            Event::Reserved(message) => Some(message),
            _ => None,
        })
        .event("closed", Event::Closed, |event| match event {
            Event::Closed(message) => Some(message),
            _ => None,
        })
}

fn codec() -> ProtoEvents<Event> {
    builder().build().expect("valid")
}

fn read(
    codec: &impl EventCodec<Event>,
    event_type: &str,
    data: impl Into<bytes::Bytes>,
) -> Result<Event, CodecError> {
    decode(codec, ContentType::Binary, event_type, data)
}

fn any_seat() -> impl Strategy<Value = Seat> {
    any::<(u32, i64)>().prop_map(|(number, row)| Seat { number, row })
}

fn any_created() -> impl Strategy<Value = Created> {
    let one = || {
        let parts = (
            any::<String>(),
            prop::collection::vec(any_seat(), 0..4),
            prop::collection::vec(any::<u8>(), 0..32),
            prop::collection::hash_map(any::<String>(), any::<f64>(), 0..4),
        );
        parts.prop_map(|(title, seats, picture, prices)| Created {
            title,
            seats,
            picture: picture.into(),
            prices,
            follows: None,
        })
    };
    (one(), prop::option::of(one())).prop_map(|(created, follows)| Created {
        follows: follows.map(Box::new),
        ..created
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any_created().prop_map(Event::Created),
        any_seat().prop_map(Event::Reserved),
        Just(Event::Closed(())),
    ]
}

proptest! {
    #[test]
    fn every_event_comes_back(event in any_event()) {
        let encoded = codec().encode(&event).expect("writable");
        prop_assert_eq!(encoded.content_type, ContentType::Binary);
        prop_assert!(TYPES.contains(&encoded.event_type.as_str()));
        prop_assert_eq!(codec().decode(Stored::from(&encoded)).expect("readable"), event);
    }
}

reads_nothing_else!(ContentType::Binary, vec![]);

#[test]
fn messages_are_stored_as_they_always_were() {
    let seats = vec![
        Seat { number: 0, row: 0 },
        Seat {
            number: u32::MAX,
            row: -1,
        },
    ];
    let first = Created {
        title: "Größe ☃".into(),
        seats,
        picture: vec![0, 255].into(),
        prices: [("a".to_owned(), 12.5)].into(),
        follows: None,
    };
    let second = Created {
        follows: Some(Box::new(Created::default())),
        ..Created::default()
    };
    let events = [
        Event::Created(first),
        Event::Created(second),
        Event::Reserved(Seat { number: 7, row: 3 }),
        Event::Reserved(Seat::default()),
        Event::Closed(()),
    ];
    golden::check(&codec(), &events, include_str!("../golden/proto.txt"));
}

#[test]
fn events_of_another_type_than_their_message_are_mapped() {
    #[derive(Debug, PartialEq)]
    enum Domain {
        Moved(std::num::NonZeroU32),
        Other,
    }
    let codec = ProtoEvents::<Domain>::new()
        .mapped_event(
            "moved",
            |event| match event {
                Domain::Moved(number) => Some(Seat {
                    number: number.get(),
                    row: 0,
                }),
                Domain::Other => None,
            },
            |message: Seat| match message.number.try_into() {
                Ok(number) => Ok(Domain::Moved(number)),
                Err(_) => Err("number is zero".into()),
            },
        )
        .build()
        .expect("valid");
    let seven = Domain::Moved(std::num::NonZeroU32::new(7).expect("not zero"));
    round_trips(&codec, [("moved", seven)]);
    unwritable(&codec, &Domain::Other);
    let zero = decode(&codec, ContentType::Binary, "moved", vec![]);
    assert_eq!(malformed(zero), "number is zero");
}

#[test]
fn events_without_a_declaration_are_unwritable() {
    let detail = unwritable(&codec(), &Event::Forgotten);
    assert!(detail.contains("seat-reserved.v2"), "{detail}");
    let nothing = ProtoEvents::<Event>::new().build().expect("valid");
    unwritable(&nothing, &Event::Closed(()));
}

#[test]
fn json_is_refused() {
    let read = decode(&codec(), ContentType::Json, "closed", vec![]);
    assert!(malformed(read).contains("JSON"));
}

#[test]
fn fields_of_later_versions_are_passed_over() {
    let seat = Event::Reserved(Seat { number: 7, row: 0 });
    let with_field_9 = vec![0x08, 0x07, 0x4a, 0x01, b'x'];
    assert_eq!(read(&codec(), "seat-reserved.v2", with_field_9), Ok(seat));
}

#[test]
fn huge_lengths_and_deep_nesting_are_refused() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    for tag in [0x0a, 0x12, 0x1a, 0x22, 0x2a, 0x7a] {
        malformed(read(&codec(), "created", [&[tag][..], &huge].concat()));
    }
    // Groups without end, and messages in messages.
    malformed(read(&codec(), "created", vec![0x7b; 1_000_000]));
    let detail = malformed(read(&codec(), "created", nested(200).encode_to_vec()));
    assert!(detail.contains("recursion limit"), "{detail}");
}

fn nested(depth: usize) -> Created {
    (1..depth).fold(Created::default(), |inner, _| Created {
        follows: Some(Box::new(inner)),
        ..Created::default()
    })
}

#[test]
fn what_is_written_is_not_too_deep_to_be_read() {
    let event = |depth| Event::Created(nested(depth));
    for depth in 1..=101 {
        let encoded = codec().encode(&event(depth)).expect("writable");
        assert_eq!(codec().decode(Stored::from(&encoded)), Ok(event(depth)));
    }
    for depth in 102..120 {
        let detail = unwritable(&codec(), &event(depth));
        assert!(detail.contains("recursion limit"), "{depth}: {detail}");
    }
}

fn codec_with_upcasts() -> ProtoEvents<Event> {
    builder()
        .upcast("seat-booked", "seat-reserved", Ok::<SeatV1, String>)
        .upcast("seat-reserved", "seat-reserved.v2", |old: SeatV1| {
            let number = old.name.parse().map_err(|error| format!("name: {error}"))?;
            Ok(Seat { number, row: 0 })
        })
        .build()
        .expect("valid")
}

#[test]
fn old_messages_are_upcast_along_the_chain() {
    let data = |name: &str| {
        SeatV1 {
            name: name.to_owned(),
        }
        .encode_to_vec()
    };
    let codec = codec_with_upcasts();
    let seat = Event::Reserved(Seat { number: 12, row: 0 });
    assert_eq!(read(&codec, "seat-booked", data("12")), Ok(seat.clone()));
    assert_eq!(read(&codec, "seat-reserved", data("12")), Ok(seat.clone()));
    assert_eq!(
        codec.encode(&seat).expect("writable").event_type.as_str(),
        "seat-reserved.v2"
    );
    let error = read(&codec, "seat-booked", data("A")).expect_err("malformed");
    assert_eq!(
        error.to_string(),
        "event of type \"seat-booked\" cannot be read: on the way to \"seat-reserved.v2\": \
         name: invalid digit found in string"
    );
    malformed(read(&codec, "seat-reserved", vec![0xff]));
}

#[test]
fn declarations_that_cannot_work_are_refused_when_built() {
    let closed = |builder: ProtoEventsBuilder<Event>, name: &str| {
        builder.event(name, Event::Closed, |_| None)
    };
    let refused =
        |builder: ProtoEventsBuilder<Event>| builder.build().expect_err("refused").to_string();
    assert!(refused(closed(builder(), "created")).contains("declared twice"));
    assert!(refused(closed(builder(), "")).contains("must not be empty"));
    assert!(refused(closed(builder(), "a\nb")).contains("control characters"));
    assert!(refused(closed(builder(), &"x".repeat(513))).contains("at most 512"));
    let step = |builder: ProtoEventsBuilder<Event>, from: &str, to: &str| {
        builder.upcast(from, to, Ok::<Seat, String>)
    };
    assert!(refused(step(step(builder(), "a", "b"), "b", "a")).contains("circle"));
    assert!(refused(step(builder(), "a", "clsoed")).contains("\"clsoed\""));
    assert!(refused(step(builder(), "closed", "created")).contains("current event"));
    assert!(refused(step(step(builder(), "a", "closed"), "a", "created")).contains("twice"));
}

#[test]
fn codecs_show_what_they_know() {
    let shown = format!("{:?}", codec_with_upcasts());
    for name in ["created", "seat-booked", "seat-reserved.v2"] {
        assert!(shown.contains(name), "{shown}");
    }
}
