//! Golden files: the exact bytes of stored events. A change here makes events unreadable that are already stored.
//!
//! Lines of type and data: JSON as it is, binary forms in hexadecimal.

use gesta_core::ContentType;
use gesta_entity::{EventCodec, JsonEvents, Stored};

use crate::events::{Event, Mode, Payment, decode};

/// One event of each kind, and a few values at the edges.
pub(crate) fn events() -> Vec<Event> {
    vec![
        Event::ItemAdded {
            sku: "tea \"green\" ☃".into(),
            quantity: u32::MAX,
            note: None,
        },
        Event::ItemAdded {
            sku: String::new(),
            quantity: 0,
            note: Some("n".into()),
        },
        Event::Paid(Payment {
            amount: 12.5,
            parts: vec![0, u128::from(u64::MAX), u128::MAX],
            by: [("a".to_owned(), 'ä'), ("b".to_owned(), '\n')].into(),
        }),
        Event::Paid(Payment {
            amount: 0.1,
            parts: vec![],
            by: [].into(),
        }),
        Event::Moved(i64::MIN, u64::MAX),
        Event::Moved(-1, 24),
        Event::Closed,
        Event::Labelled(None),
        Event::Labelled(Some("x".into())),
        Event::Switched { to: Mode::Off },
        Event::Switched {
            to: Mode::Dimmed(7),
        },
        Event::Switched {
            to: Mode::Coloured { rgb: (0, 127, 255) },
        },
        Event::Emptied {},
        Event::Described {
            by: "ann".into(),
            more: [("x".to_owned(), 1), ("y".to_owned(), -500)].into(),
        },
    ]
}

/// The codec writes exactly these lines, and reads them.
pub(crate) fn check<E: std::fmt::Debug + PartialEq>(
    codec: &impl EventCodec<E>,
    events: &[E],
    golden: &str,
) {
    let encoded: Vec<_> = events
        .iter()
        .map(|event| codec.encode(event).expect("writable"))
        .collect();
    let found: String = encoded
        .iter()
        .map(|event| {
            let data = match event.content_type {
                ContentType::Json => std::str::from_utf8(&event.data).expect("UTF-8").to_owned(),
                ContentType::Binary => hex(&event.data),
            };
            format!("{} {data}", event.event_type).trim_end().to_owned() + "\n"
        })
        .collect();
    assert_eq!(found, golden, "found:\n{found}");
    for (encoded, event) in encoded.iter().zip(events) {
        assert_eq!(codec.decode(Stored::from(encoded)).as_ref(), Ok(event));
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn json_is_stored_as_it_always_was() {
    let codec = JsonEvents::<Event>::new();
    check(&codec, &events(), include_str!("../golden/json.txt"));
}

/// Lines that earlier versions or other programs may have stored.
#[test]
fn json_of_other_writers_is_read() {
    let codec = JsonEvents::<Event>::new();
    for (event_type, data, event) in [
        ("closed", "null", Event::Closed),
        ("closed.v1", "{}", Event::Closed),
        ("emptied", r#"{"x":1}"#, Event::Emptied {}),
        ("moved", " [ 1 , 2 ] ", Event::Moved(1, 2)),
    ] {
        for content_type in [ContentType::Json, ContentType::Binary] {
            let read = decode(&codec, content_type, event_type, data);
            assert_eq!(read.as_ref(), Ok(&event), "{event_type} {data}");
        }
    }
}
