//! Events with every kind of variant, and values that are hard to keep.

use std::collections::BTreeMap;

use bytes::Bytes;
use gesta_core::ContentType;
use gesta_entity::{CodecError, EventCodec, Stored};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// Every kind of variant. The names on disk are not those in Rust.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event {
    /// A struct variant, with a field that older events lack.
    #[serde(rename = "item-added.v2")]
    ItemAdded {
        sku: String,
        quantity: u32,
        #[serde(default)]
        note: Option<String>,
    },
    /// A newtype variant around a struct.
    Paid(Payment),
    /// A tuple variant.
    Moved(i64, u64),
    /// A unit variant, which was called otherwise once.
    #[serde(alias = "closed.v1")]
    Closed,
    /// A newtype variant around something that may be null.
    Labelled(Option<String>),
    /// An enum inside the enum.
    Switched { to: Mode },
    /// A struct variant without fields.
    Emptied {},
    /// A struct variant whose content is flattened.
    Described {
        by: String,
        #[serde(flatten)]
        more: BTreeMap<String, i64>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Payment {
    pub(crate) amount: f64,
    pub(crate) parts: Vec<u128>,
    pub(crate) by: BTreeMap<String, char>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Off,
    Dimmed(u8),
    Coloured { rgb: (u8, u8, u8) },
}

/// Every kind of event, with finite numbers.
pub(crate) fn any_event() -> impl Strategy<Value = Event> {
    let text = any::<String>();
    let number = any::<f64>().prop_filter("JSON has finite numbers only", |n| n.is_finite());
    let payment = (
        number,
        prop::collection::vec(any::<u128>(), 0..4),
        prop::collection::btree_map(any::<String>(), any::<char>(), 0..4),
    )
        .prop_map(|(amount, parts, by)| Payment { amount, parts, by });
    let mode = prop_oneof![
        Just(Mode::Off),
        any::<u8>().prop_map(Mode::Dimmed),
        any::<(u8, u8, u8)>().prop_map(|rgb| Mode::Coloured { rgb }),
    ];
    prop_oneof![
        (text, any::<u32>(), any::<Option<String>>()).prop_map(|(sku, quantity, note)| {
            Event::ItemAdded {
                sku,
                quantity,
                note,
            }
        }),
        payment.prop_map(Event::Paid),
        any::<(i64, u64)>().prop_map(|(x, y)| Event::Moved(x, y)),
        Just(Event::Closed),
        any::<Option<String>>().prop_map(Event::Labelled),
        mode.prop_map(|to| Event::Switched { to }),
        Just(Event::Emptied {}),
        (
            any::<String>(),
            prop::collection::btree_map("[a-z]{3,5}", any::<i64>(), 0..4)
        )
            .prop_map(|(by, more)| Event::Described { by, more }),
    ]
}

/// The types that [`Event`] knows.
pub(crate) const TYPES: [&str; 9] = [
    "item-added.v2",
    "paid",
    "moved",
    "closed",
    "closed.v1",
    "labelled",
    "switched",
    "emptied",
    "described",
];

/// Newtype wrappers are looked through.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wrapped(pub(crate) Box<Event>);

/// What is no externally tagged enum.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NoEnum {
    pub(crate) a: u8,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub(crate) enum InternallyTagged {
    Opened { by: String },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Untagged {
    Opened { by: String },
}

/// A name that no event type may have.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum BadName {
    #[serde(rename = "line\nbreak")]
    Broken,
    #[serde(rename = "")]
    Nameless,
}

pub(crate) fn decode<E>(
    codec: &impl EventCodec<E>,
    content_type: ContentType,
    event_type: &str,
    data: impl Into<Bytes>,
) -> Result<E, CodecError> {
    let data = data.into();
    codec.decode(Stored {
        event_type,
        content_type,
        data: &data,
    })
}

/// The detail of a malformed event.
#[track_caller]
pub(crate) fn malformed<E: std::fmt::Debug>(result: Result<E, CodecError>) -> String {
    match result {
        Err(CodecError::Malformed { detail, .. }) => detail,
        other => panic!("not malformed: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn unwritable<E>(codec: &impl EventCodec<E>, event: &E) -> String {
    match codec.encode(event) {
        Err(CodecError::Unwritable(detail)) => detail,
        other => panic!("not unwritable: {other:?}"),
    }
}

/// Bytes, and bytes that begin well: cut or changed in one place.
pub(crate) fn hostile(good: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let len = good.len();
    let cut = good.clone();
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        (0..=len).prop_map(move |at| cut[..at].to_vec()),
        (0..len.max(1), any::<u8>()).prop_map(move |(at, byte)| {
            let mut changed = good.clone();
            if let Some(place) = changed.get_mut(at) {
                *place = byte;
            }
            changed
        }),
    ]
}

/// What bytes of whatever origin may lead to, if the type is known.
pub(crate) fn read_or_malformed<E>(read: &Result<E, CodecError>) -> bool {
    matches!(read, Ok(_) | Err(CodecError::Malformed { .. }))
}

/// The scalars and containers of serde, one of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Everything {
    Numbers {
        signed: (i8, i16, i32, i64, i128),
        unsigned: (u8, u16, u32, u64, u128),
        single: f32,
        flag: bool,
        nothing: (),
        marker: Marker,
    },
    Containers(BTreeMap<u16, Vec<Option<String>>>, [u8; 3], Wrapper),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Marker;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wrapper(Box<str>);

/// Every scalar, with finite numbers.
pub(crate) fn any_of_everything() -> impl Strategy<Value = Everything> {
    let numbers = (
        any::<(i8, i16, i32, i64, i128)>(),
        any::<(u8, u16, u32, u64, u128)>(),
        any::<f32>().prop_filter("JSON has finite numbers only", |n| n.is_finite()),
        any::<bool>(),
    )
        .prop_map(|(signed, unsigned, single, flag)| Everything::Numbers {
            signed,
            unsigned,
            single,
            flag,
            nothing: (),
            marker: Marker,
        });
    let lists = prop::collection::vec(any::<Option<String>>(), 0..3);
    let containers = (
        prop::collection::btree_map(any::<u16>(), lists, 0..3),
        any::<[u8; 3]>(),
        any::<String>(),
    )
        .prop_map(|(map, array, text)| Everything::Containers(map, array, Wrapper(text.into())));
    prop_oneof![numbers, containers]
}

/// Tests that the codec of a module refuses what is not its own: its `codec`, `any_event` and `TYPES`, the type of what
/// it writes, and data that are read whatever the event.
macro_rules! reads_nothing_else {
    ($content_type:expr, $empty:expr) => {
        proptest! {
            #[test]
            fn hostile_bytes_are_refused_or_read(
                (name, data) in (prop::sample::select(&TYPES[..]), any_event()).prop_flat_map(|(name, event)| {
                    let good = codec().encode(&event).expect("writable").data.to_vec();
                    (Just(name), hostile(good))
                }),
            ) {
                let read = decode(&codec(), $content_type, name, data);
                prop_assert!(read_or_malformed(&read), "{read:?}");
            }

            #[test]
            fn unknown_names_are_named(name in any::<String>()) {
                prop_assume!(!TYPES.contains(&name.as_str()));
                let read = decode(&codec(), $content_type, &name, $empty);
                prop_assert_eq!(read, Err(CodecError::UnknownType(name)));
            }
        }
    };
}
pub(crate) use reads_nothing_else;
