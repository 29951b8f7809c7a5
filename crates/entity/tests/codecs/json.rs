//! JSON.

use gesta_core::ContentType;
use gesta_entity::scenario::round_trips;
use gesta_entity::{CodecError, EventCodec, JsonEvents, Stored};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::events::*;

fn codec() -> JsonEvents<Event> {
    JsonEvents::new()
}

fn read<E>(codec: &impl EventCodec<E>, event_type: &str, data: &str) -> Result<E, CodecError> {
    decode(codec, ContentType::Json, event_type, data.to_owned())
}

proptest! {
    #[test]
    fn every_event_comes_back(event in any_event()) {
        let encoded = codec().encode(&event).expect("writable");
        prop_assert_eq!(encoded.content_type, ContentType::Json);
        prop_assert_eq!(codec().decode(Stored::from(&encoded)).expect("readable"), event);
    }

    #[test]
    fn every_scalar_comes_back(event in any_of_everything()) {
        let codec = JsonEvents::<Everything>::new();
        let encoded = codec.encode(&event).expect("writable");
        prop_assert_eq!(codec.decode(Stored::from(&encoded)).expect("readable"), event);
    }

    /// What is stored is exactly what serde would have put beside the name of the variant.
    #[test]
    fn data_are_the_content_of_the_variant(event in any_event()) {
        let encoded = codec().encode(&event).expect("writable");
        let name = encoded.event_type.as_str();
        let data = std::str::from_utf8(&encoded.data).expect("UTF-8");
        let expected = match event {
            Event::Closed => format!("{name:?}"),
            _ => format!("{{{name:?}:{data}}}"),
        };
        prop_assert_eq!(serde_json::to_string(&event).expect("writable"), expected);
    }
}

reads_nothing_else!(ContentType::Json, "{}");

#[test]
fn names_on_disk_are_those_of_serde() {
    round_trips(
        &codec(),
        [
            ("moved", Event::Moved(-3, 4)),
            ("closed", Event::Closed),
            ("labelled", Event::Labelled(None)),
            ("switched", Event::Switched { to: Mode::Off }),
            ("emptied", Event::Emptied {}),
        ],
    );
}

#[test]
fn unit_variants_are_read_from_null_and_objects_only() {
    for data in ["{}", "null", " { } ", r#"{"added":[{"later":1}]}"#] {
        assert_eq!(read(&codec(), "closed", data), Ok(Event::Closed), "{data}");
        assert_eq!(read(&codec(), "closed.v1", data), Ok(Event::Closed));
    }
    for data in ["", "0", "[]", "\"closed\"", "true", "{}{}", "{\"a\":}"] {
        malformed(read(&codec(), "closed", data));
    }
}

#[test]
fn missing_and_unknown_fields_follow_serde() {
    assert_eq!(
        read(
            &codec(),
            "item-added.v2",
            r#"{"sku":"tea","quantity":1,"x":0}"#
        ),
        Ok(Event::ItemAdded {
            sku: "tea".into(),
            quantity: 1,
            note: None
        })
    );
    let detail = malformed(read(&codec(), "item-added.v2", r#"{"sku":"tea"}"#));
    assert!(detail.contains("missing field `quantity`"), "{detail}");
}

#[test]
fn an_unknown_variant_inside_the_content_is_malformed_not_unknown() {
    let detail = malformed(read(&codec(), "switched", r#"{"to":"Blinking"}"#));
    assert!(detail.contains("unknown variant `Blinking`"), "{detail}");
    let error = read(&codec(), "switched", r#"{"to":"Blinking"}"#).expect_err("malformed");
    assert!(error.to_string().contains("\"switched\""), "{error}");
}

#[test]
fn bytes_after_the_data_are_refused() {
    for data in ["[1,2] x", "[1,2][1,2]", "[1,2]null"] {
        malformed(read(&codec(), "moved", data));
    }
    malformed(read(&codec(), "moved", "[1,2,3]"));
    assert_eq!(read(&codec(), "moved", "[1,2]\n"), Ok(Event::Moved(1, 2)));
}

#[test]
fn deep_nesting_is_refused() {
    #[derive(Debug, Serialize, Deserialize)]
    enum Deep {
        Any(Value),
        None,
    }
    let codec = JsonEvents::<Deep>::new();
    let arrays = "[".repeat(1_000_000);
    let objects = r#"{"a":"#.repeat(1_000_000);
    for data in [arrays, objects] {
        let detail = malformed(read(&codec, "Any", &data));
        assert!(detail.contains("recursion limit"), "{detail}");
        malformed(read(&codec, "None", &format!("{{\"x\":{data}")));
    }
}

/// A client that sends data of the greatest depth that is accepted must not be able to make an unreadable event.
#[test]
fn what_is_written_is_not_too_deep_to_be_read() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Deep {
        Any(Value),
        Struct { any: Vec<Value> },
    }
    let codec = JsonEvents::<Deep>::new();
    let nested = |depth| (1..depth).fold(json!([]), |inner, _| json!({ "a": inner }));
    round_trips(&codec, [("Any", Deep::Any(nested(100)))]);
    assert!(unwritable(&codec, &Deep::Any(nested(101))).contains("100 levels"));
    let any = |depth| Deep::Struct {
        any: vec![nested(depth)],
    };
    round_trips(&codec, [("Struct", any(98))]);
    assert!(unwritable(&codec, &any(99)).contains("100 levels"));
    // Chains of enums count the object around the variant too.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Chain {
        End,
        Newtype(Box<Chain>),
        Tuple(u8, Box<Chain>),
        Struct { next: Box<Chain> },
    }
    let codec = JsonEvents::<Chain>::new();
    let links: [fn(Chain) -> Chain; 3] = [
        |next| Chain::Newtype(next.into()),
        |next| Chain::Tuple(0, next.into()),
        |next| Chain::Struct { next: next.into() },
    ];
    for link in links {
        let written = (1..200)
            .map(|len| (0..len).fold(Chain::End, |chain, _| link(chain)))
            .take_while(|chain| match codec.encode(chain) {
                Ok(encoded) => codec.decode(Stored::from(&encoded)).as_ref() == Ok(chain),
                Err(CodecError::Unwritable(_)) => false,
                Err(other) => panic!("{other}"),
            });
        let deepest = written.last().expect("at least one");
        unwritable(&codec, &link(deepest));
    }
}

#[test]
fn numbers_come_back_to_the_last_bit() {
    // Read without care, this one comes back as its neighbour.
    let hard = 51.24817837550540_4_f64;
    for amount in [hard, f64::MIN_POSITIVE, f64::MAX, -0.0, 0.1, 5e-324] {
        let event = Event::Paid(Payment {
            amount,
            parts: vec![u128::MAX, u128::from(u64::MAX)],
            by: [("\u{0}\"\\\u{2028}".to_owned(), '\u{10FFFF}')].into(),
        });
        let encoded = codec().encode(&event).expect("writable");
        let Event::Paid(read) = codec().decode(Stored::from(&encoded)).expect("readable") else {
            panic!("another event");
        };
        assert_eq!(read.amount.to_bits(), amount.to_bits());
    }
}

/// `serde_json` writes `null` for these, which could not be read back: the entity would be lost.
#[test]
fn numbers_that_json_does_not_have_are_not_written() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Measured {
        Struct { x: Option<f32> },
        Newtype(f64),
        Tuple(u8, Vec<f64>),
        Nested(std::collections::BTreeMap<u8, (f64, Inner)>),
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Inner {
        Newtype(f64),
        Struct { x: f64 },
        Tuple(f64, f64),
    }
    let codec = JsonEvents::<Measured>::new();
    let nested = |x, inner| Measured::Nested([(1, (x, inner))].into());
    for event in [
        Measured::Struct {
            x: Some(f32::INFINITY),
        },
        Measured::Newtype(f64::NAN),
        Measured::Tuple(0, vec![0.0, f64::NEG_INFINITY]),
        nested(f64::NAN, Inner::Newtype(0.0)),
        nested(0.0, Inner::Newtype(f64::NAN)),
        nested(0.0, Inner::Struct { x: f64::NAN }),
        nested(0.0, Inner::Tuple(0.0, f64::NAN)),
    ] {
        let detail = unwritable(&codec, &event);
        assert!(detail.contains("no form in JSON"), "{detail}");
    }
    round_trips(
        &codec,
        [
            ("Struct", Measured::Struct { x: None }),
            ("Tuple", Measured::Tuple(1, vec![1.5])),
            ("Nested", nested(2.5, Inner::Tuple(0.25, 1e300))),
            ("Nested", nested(2.5, Inner::Struct { x: 0.0 })),
        ],
    );
}

#[test]
fn what_is_no_enum_is_refused_both_ways() {
    let text = "externally tagged";
    let no_enum = JsonEvents::<NoEnum>::new();
    assert!(unwritable(&no_enum, &NoEnum { a: 1 }).contains(text));
    assert!(malformed(read(&no_enum, "a", r#"{"a":1}"#)).contains(text));
    let internal = JsonEvents::<InternallyTagged>::new();
    let opened = InternallyTagged::Opened { by: "ann".into() };
    assert!(unwritable(&internal, &opened).contains(text));
    assert!(malformed(read(&internal, "Opened", r#"{"by":"ann"}"#)).contains(text));
    let untagged = JsonEvents::<Untagged>::new();
    let opened = Untagged::Opened { by: "ann".into() };
    assert!(unwritable(&untagged, &opened).contains(text));
    assert!(malformed(read(&untagged, "Opened", r#"{"by":"ann"}"#)).contains(text));
    let option = JsonEvents::<Option<Event>>::new();
    assert!(unwritable(&option, &Some(Event::Closed)).contains(text));
    assert!(unwritable(&option, &None).contains(text));
    assert!(unwritable(&JsonEvents::<Vec<Event>>::new(), &vec![]).contains(text));
    assert!(unwritable(&JsonEvents::<()>::new(), &()).contains(text));
    assert!(unwritable(&JsonEvents::<(u8, u8)>::new(), &(1, 2)).contains(text));
    assert!(unwritable(&JsonEvents::<String>::new(), &"a".into()).contains(text));
}

#[test]
fn wrappers_are_looked_through() {
    round_trips(
        &JsonEvents::<Wrapped>::new(),
        [("moved", Wrapped(Box::new(Event::Moved(1, 2))))],
    );
}

#[test]
fn names_that_cannot_be_stored_are_unwritable() {
    let codec = JsonEvents::<BadName>::new();
    assert!(unwritable(&codec, &BadName::Broken).contains("control characters"));
    assert!(unwritable(&codec, &BadName::Nameless).contains("must not be empty"));
}

/// The way to let go of types that no longer matter, without a word in the codec.
#[test]
fn retired_types_go_into_a_unit_variant() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Cart {
        #[serde(alias = "banner-shown")]
        Retired,
        #[serde(other)]
        Unknown,
    }
    let codec = JsonEvents::<Cart>::new();
    let data = r#"{"banner":"sale"}"#;
    assert_eq!(read(&codec, "banner-shown", data), Ok(Cart::Retired));
    assert_eq!(read(&codec, "of-another-team", data), Ok(Cart::Unknown));
}

#[test]
fn old_forms_are_upcast_along_the_chain() {
    let codec = codec_with_upcasts();
    let read = |event_type, data| read(&codec, event_type, data);
    let tea = |note: &str| {
        Ok(Event::ItemAdded {
            sku: "tea".into(),
            quantity: 1,
            note: Some(note.into()),
        })
    };
    assert_eq!(read("item-put", r#""tea""#), tea("from v0"));
    assert_eq!(read("item-added", r#"{"sku":"tea","note":"n"}"#), tea("n"));
    assert_eq!(read("closed", "{}"), Ok(Event::Closed));
    assert_eq!(
        read("no-such", "{}"),
        Err(CodecError::UnknownType("no-such".into()))
    );
}

fn codec_with_upcasts() -> JsonEvents<Event> {
    #[derive(Serialize)]
    struct ItemAdded {
        sku: String,
        note: &'static str,
    }
    JsonEvents::<Event>::new()
        .upcast("item-put", "item-added", |sku: String| {
            Ok(ItemAdded {
                sku,
                note: "from v0",
            })
        })
        .upcast("item-added", "item-added.v2", |mut event: Value| {
            let fields = event.as_object_mut().ok_or("is no object")?;
            fields.insert("quantity".into(), json!(1));
            Ok(event)
        })
        .upcast("number", "labelled", |number: f64| Ok(1.0 / number))
        .build()
        .expect("valid")
}

#[test]
fn a_failed_upcast_names_stored_type_and_detail() {
    let codec = codec_with_upcasts();
    let error = read(&codec, "item-added", "[]").expect_err("malformed");
    assert_eq!(
        error.to_string(),
        "event of type \"item-added\" cannot be read: on the way to \"item-added.v2\": is no object"
    );
    let error = read(&codec, "item-put", "{").expect_err("malformed");
    assert!(error.to_string().contains("\"item-put\""), "{error}");
    // The new data are not what the variant wants.
    let error = read(&codec, "number", "2.0").expect_err("malformed");
    assert!(
        error.to_string().contains("upcast to \"labelled\""),
        "{error}"
    );
    // The new data have no form in JSON.
    let detail = malformed(read(&codec, "number", "0.0"));
    assert!(detail.contains("no form in JSON"), "{detail}");
}

#[test]
fn upcasts_that_cannot_work_are_refused_when_built() {
    let same = |value: Value| Ok(value);
    let refused = |steps: &[(&str, &str)]| {
        let [(from, to), rest @ ..] = steps else {
            panic!("no steps");
        };
        let mut builder = codec().upcast(*from, *to, same);
        for (from, to) in rest {
            builder = builder.upcast(*from, *to, same);
        }
        builder.build().expect_err("refused").to_string()
    };
    assert!(refused(&[("a", "b"), ("b", "a")]).contains("circle"));
    assert!(refused(&[("a", "a")]).contains("circle"));
    assert!(refused(&[("x", "a"), ("a", "b"), ("b", "a")]).contains("circle"));
    assert!(refused(&[("a", "colsed")]).contains("\"colsed\""));
    assert!(refused(&[("a", "closed"), ("a", "moved")]).contains("twice"));
    assert!(refused(&[("closed", "moved")]).contains("current event"));
    assert!(refused(&[("closed.v1", "moved")]).contains("current event"));
    assert!(refused(&[("", "moved")]).contains("must not be empty"));
    let no_enum = JsonEvents::<NoEnum>::new().upcast("a", "b", same).build();
    assert!(no_enum.expect_err("refused").to_string().contains("enum"));
}
