//! CBOR.

use gesta_core::ContentType;
use gesta_entity::scenario::round_trips;
use gesta_entity::{CborEvents, CodecError, EventCodec, Stored};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::events::*;
use crate::golden;

fn codec() -> CborEvents<Event> {
    CborEvents::new()
}

fn read<E>(
    codec: &impl EventCodec<E>,
    event_type: &str,
    data: impl Into<bytes::Bytes>,
) -> Result<E, CodecError> {
    decode(codec, ContentType::Binary, event_type, data)
}

proptest! {
    #[test]
    fn every_event_comes_back(event in any_event()) {
        let encoded = codec().encode(&event).expect("writable");
        prop_assert_eq!(encoded.content_type, ContentType::Binary);
        prop_assert_eq!(codec().decode(Stored::from(&encoded)).expect("readable"), event);
    }

    #[test]
    fn every_scalar_comes_back(event in any_of_everything()) {
        let codec = CborEvents::<Everything>::new();
        let encoded = codec.encode(&event).expect("writable");
        prop_assert_eq!(codec.decode(Stored::from(&encoded)).expect("readable"), event);
    }

    /// What is stored is exactly what serde would have put beside the name of the variant.
    #[test]
    fn data_are_the_content_of_the_variant(event in any_event()) {
        let encoded = codec().encode(&event).expect("writable");
        let mut whole = Vec::new();
        ciborium::into_writer(&event, &mut whole).expect("writable");
        let mut expected = Vec::new();
        let name = encoded.event_type.as_str();
        match event {
            Event::Closed => ciborium::into_writer(name, &mut expected).expect("writable"),
            _ => {
                expected.push(0xa1);
                ciborium::into_writer(name, &mut expected).expect("writable");
                expected.extend_from_slice(&encoded.data);
            }
        }
        prop_assert_eq!(golden::hex(&whole), golden::hex(&expected));
    }
}

reads_nothing_else!(ContentType::Binary, [0xa0].to_vec());

#[test]
fn cbor_is_stored_as_it_always_was() {
    golden::check(
        &codec(),
        &golden::events(),
        include_str!("../golden/cbor.txt"),
    );
}

#[test]
fn numbers_without_json_come_back() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Probe {
        #[serde(rename = "measured")]
        Measured { x: f64 },
    }
    let codec = CborEvents::<Probe>::new();
    for x in [f64::INFINITY, -0.0, 5e-324, 1.0 / 3.0] {
        round_trips(&codec, [("measured", Probe::Measured { x })]);
    }
    let nan = codec
        .encode(&Probe::Measured { x: f64::NAN })
        .expect("writable");
    let Probe::Measured { x } = codec.decode(Stored::from(&nan)).expect("readable");
    assert!(x.is_nan());
}

/// What happened: a text of more than 4,096 bytes as the name of a field was written and could not be read again,
/// because the buffer of the CBOR reader was that small. What holds: whatever was written can be read.
#[test]
fn long_values_come_back() {
    let long = "ä".repeat(100_000);
    round_trips(
        &codec(),
        [
            ("labelled", Event::Labelled(Some(long.clone()))),
            (
                "described",
                Event::Described {
                    by: long.clone(),
                    more: [(long, 1)].into(),
                },
            ),
        ],
    );
}

#[test]
fn unit_variants_are_read_from_null_and_maps_only() {
    // An empty map, null, a map with a field, an endless map that ends at once.
    for data in [&[0xa0][..], &[0xf6], &[0xa1, 0x61, b'a', 1], &[0xbf, 0xff]] {
        assert_eq!(read(&codec(), "closed", data.to_vec()), Ok(Event::Closed));
        assert_eq!(
            read(&codec(), "closed.v1", data.to_vec()),
            Ok(Event::Closed)
        );
    }
    for data in [&[][..], &[0], &[0x80], &[0xa0, 0xa0], &[0xf5], &[0xff]] {
        malformed(read(&codec(), "closed", data.to_vec()));
    }
}

#[test]
fn details_say_what_is_wrong() {
    let detail = |event_type, data: &[u8]| malformed(read(&codec(), event_type, data.to_vec()));
    assert!(detail("moved", &[]).contains("end too early"));
    assert!(detail("moved", &[0x82, 1]).contains("end too early"));
    assert!(detail("moved", &[0x1c]).contains("not CBOR"));
    assert!(detail("moved", &[0x82, 1, 2, 3]).contains("bytes after the data"));
    assert!(detail("moved", &[0xa0]).contains("expected array"));
    assert!(detail("emptied", &[0x80, 0]).contains("expected map"));
    assert!(detail("item-added.v2", &[0xa0]).contains("missing field `sku`"));
}

#[test]
fn json_is_refused() {
    let read = decode(&codec(), ContentType::Json, "closed", [0xa0].to_vec());
    assert!(malformed(read).contains("JSON"));
}

#[test]
fn huge_lengths_are_refused_without_taking_memory() {
    const MAX: [u8; 8] = [0xff; 8];
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Big {
        Text(String),
        Numbers(Vec<u64>),
        Bytes(bytes_like::Bytes),
        Map(std::collections::HashMap<String, u64>),
        Any(serde_json::Value),
        Nothing,
    }
    let codec = CborEvents::<Big>::new();
    for name in ["Text", "Numbers", "Bytes", "Map", "Any", "Nothing"] {
        for first in [0x5b, 0x7b, 0x9b, 0xbb, 0xdb] {
            for len in [
                MAX,
                (1_u64 << 40).to_be_bytes(),
                (i64::MAX as u64).to_be_bytes(),
            ] {
                for rest in [&[][..], &[0], &[0x61, b'a', 0]] {
                    let data = [&[first][..], &len, rest].concat();
                    malformed(read(&codec, name, data));
                }
            }
        }
        // Endless ones that never end.
        for first in [0x5f, 0x7f, 0x9f, 0xbf] {
            malformed(read(&codec, name, vec![first]));
            malformed(read(&codec, name, vec![first; 100_000]));
        }
    }
}

/// Bytes that ask the format for bytes.
mod bytes_like {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};

    #[derive(Debug, PartialEq)]
    pub(crate) struct Bytes(Vec<u8>);

    impl Serialize for Bytes {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }

    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Take;
            impl Visitor<'_> for Take {
                type Value = Bytes;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("bytes")
                }
                fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                    Ok(Bytes(bytes))
                }
            }
            deserializer.deserialize_byte_buf(Take)
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    #[derive(Debug, Serialize, Deserialize)]
    enum Deep {
        Any(serde_json::Value),
        Nothing,
    }
    let codec = CborEvents::<Deep>::new();
    let map_of_map = [0xa1, 0x61, b'a'].repeat(1_000_000);
    for data in [
        vec![0x81; 1_000_000],
        vec![0x9f; 1_000_000],
        map_of_map.clone(),
    ] {
        let detail = malformed(read(&codec, "Any", data));
        assert!(detail.contains("nested too deeply"), "{detail}");
    }
    malformed(read(&codec, "Nothing", map_of_map));
    malformed(read(&codec, "Any", vec![0xc1; 1_000_000]));
    malformed(read(&codec, "Nothing", vec![0xc1; 1_000_000]));
}

#[test]
fn what_is_written_is_not_too_deep_to_be_read() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Deep {
        Any(serde_json::Value),
    }
    let codec = CborEvents::<Deep>::new();
    let nested = |depth| {
        Deep::Any((1..depth).fold(serde_json::json!({}), |inner, _| serde_json::json!([inner])))
    };
    round_trips(&codec, [("Any", nested(100))]);
    assert!(unwritable(&codec, &nested(101)).contains("100 levels"));
}

#[test]
fn what_is_no_enum_is_refused_both_ways() {
    let text = "externally tagged";
    let no_enum = CborEvents::<NoEnum>::new();
    assert!(unwritable(&no_enum, &NoEnum { a: 1 }).contains(text));
    assert!(malformed(read(&no_enum, "a", vec![0xa1, 0x61, b'a', 1])).contains(text));
    let names = CborEvents::<BadName>::new();
    assert!(unwritable(&names, &BadName::Broken).contains("control characters"));
    round_trips(
        &CborEvents::<Wrapped>::new(),
        [("moved", Wrapped(Box::new(Event::Moved(1, 2))))],
    );
}

#[test]
fn old_forms_are_upcast_along_the_chain() {
    #[derive(Deserialize)]
    struct ItemPut(String);
    #[derive(Serialize, Deserialize)]
    struct ItemAdded {
        sku: String,
    }
    #[derive(Serialize)]
    struct ItemAddedV2 {
        sku: String,
        quantity: u32,
    }
    let codec = codec()
        .upcast("item-put", "item-added", |old: ItemPut| {
            Ok(ItemAdded { sku: old.0 })
        })
        .upcast("item-added", "item-added.v2", |old: ItemAdded| {
            if old.sku.is_empty() {
                return Err("sku is empty".into());
            }
            Ok(ItemAddedV2 {
                sku: old.sku,
                quantity: 1,
            })
        })
        .build()
        .expect("valid");
    let event = Event::ItemAdded {
        sku: "t".into(),
        quantity: 1,
        note: None,
    };
    assert_eq!(read(&codec, "item-put", vec![0x61, b't']), Ok(event));
    assert!(malformed(read(&codec, "item-put", vec![0x60])).contains("sku is empty"));
    assert!(malformed(read(&codec, "item-put", vec![0x60, 0])).contains("bytes after"));
    assert!(malformed(read(&codec, "item-put", vec![0x62])).contains("end too early"));
}

#[test]
fn upcasts_that_cannot_work_are_refused_when_built() {
    let circle = codec()
        .upcast("a", "b", |value: u8| Ok(value))
        .upcast("b", "a", |value: u8| Ok(value))
        .build();
    assert!(circle.expect_err("refused").to_string().contains("circle"));
    let no_enum = CborEvents::<NoEnum>::new()
        .upcast("a", "b", |value: u8| Ok(value))
        .build();
    assert!(no_enum.expect_err("refused").to_string().contains("enum"));
}
