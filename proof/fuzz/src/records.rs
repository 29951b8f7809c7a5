//! What the store keeps: compressed data, tags, states of streams, links, documents of groups, timers and imports, and
//! what processes tell each other.

use bytes::Bytes;
use gesta_core::backend::Signal;
use gesta_core::{
    ContentType, EventData, EventType, Lifecycle, LifecycleChange, LinkTarget, LogId, Position,
    RecordedEvent, Revision, StreamMetadata, Timestamp, virtual_link,
};
use gesta_groups::parked_event;
use gesta_grpc::stored::{begun_again, translated};
use gesta_import::{NameRule, Place, TypeRule};
use gesta_postgres::core as postgres;
use gesta_sql::{RawRow, tags_from_text, tags_to_text};
use uuid::Uuid;

use crate::Seed;
use crate::sample::{after, byte, event_type, id, incarnation, recorded, stream, two};

/// How many times as large as its compressed form data may be.
const GROWTH_MAX: usize = 8;

/// Rows, documents and messages, whoever wrote them.
pub(crate) fn records(mut input: &[u8]) {
    match byte(&mut input) {
        0 => unpacked(input),
        1 => packed(input),
        2 => signal(input),
        3 => lifecycle(input),
        4 => metadata(input),
        5 => configured(input),
        6 => progressed(input),
        7 => timers(input),
        8 => text_of_tags(input),
        9 => link(input),
        10 => checksum(input),
        _ => import(input),
    }
}

/// Damaged bytes take no more memory than they may tell of.
fn unpacked(mut input: &[u8]) {
    let code = i16::from(byte(&mut input));
    let stored = Bytes::copy_from_slice(input);
    match postgres::unpack(code, &stored) {
        Ok((content_type, data)) => {
            assert_eq!(data.len(), postgres::length(code, &stored));
            assert!(data.len() <= stored.len() * GROWTH_MAX);
            let added = if code >= postgres::PACKED {
                postgres::PACKED
            } else {
                0
            };
            assert_eq!(content_type, i64::from(code - added));
        }
        Err(problem) => assert!(!problem.is_empty()),
    }
}

/// What is compressed is smaller, and read as it was.
fn packed(input: &[u8]) {
    // Only large data are compressed.
    let data: Vec<u8> = input
        .iter()
        .copied()
        .cycle()
        .take(input.len().max(3_000))
        .collect();
    let Some(packed) = postgres::pack(&stream("cart-1"), ContentType::Binary, &data) else {
        return;
    };
    assert!(packed.len() < data.len() && data.len() <= packed.len() * GROWTH_MAX);
    let read = postgres::unpack(postgres::PACKED + 1, &packed.into());
    assert_eq!(read, Ok((1, data.into())));
}

/// A message of another process is written as it was read.
fn signal(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (us, them) = (id(1), id(2));
    let Some(signal) = postgres::signal(us, text) else {
        return;
    };
    let written = postgres::payload(them, &signal).expect("it was sent");
    assert_eq!(postgres::signal(us, &written), Some(signal));
    assert_eq!(postgres::signal(them, &written), None);
}

/// The state of a stream travels through its event.
fn lifecycle(input: &[u8]) {
    let (data, metadata) = two(input);
    let event = recorded(data.to_vec(), metadata.to_vec());
    if let Ok(state) = Lifecycle::from_event(&event.data, &event.metadata) {
        let written = state.to_event(LifecycleChange::Metadata);
        let again = Lifecycle::from_event(&written.data, &written.metadata);
        assert_eq!(again.expect("what is written can be read"), state);
        for last in [Revision(0), Revision::MAX] {
            for now in [Timestamp(i64::MIN), Timestamp(0), Timestamp::MAX] {
                let visible = state.visibility(last, now);
                assert!(visible.from >= state.deleted_before);
                assert!(!state.exists(Some(last)) || !state.tombstoned);
            }
        }
    }
    // As other clients see it.
    let noted = RecordedEvent {
        stream: event.stream.metadata_stream(),
        event_type: event_type("$deleted"),
        ..event
    };
    assert_eq!(translated(&noted).event_type.as_str(), "$metadata");
    assert_eq!(begun_again(noted.clone()).position, noted.position);
}

/// Documents of metadata, as callers and clients of other systems write them.
fn metadata(input: &[u8]) {
    match StreamMetadata::parse_event(input.to_vec()) {
        Ok((change, metadata)) => {
            let again = StreamMetadata::parse(metadata.json().clone());
            assert_eq!(again.expect("what is kept can be read"), metadata);
            match change {
                LifecycleChange::Metadata => assert_eq!(metadata.json(), input),
                LifecycleChange::Deleted => assert_eq!(metadata.truncate_before, None),
                LifecycleChange::Tombstone => panic!("no document is a tombstone"),
            }
        }
        Err(error) => assert!(error.to_string().contains("metadata"), "{error}"),
    }
}

fn configured(input: &[u8]) {
    let event = recorded(input.to_vec(), "");
    if let Ok((written, filter)) = gesta_groups::core::configured(&event) {
        let (again, same) = gesta_groups::core::configured(&recorded(written.data.clone(), ""))
            .expect("what is written can be read");
        assert_eq!((again.data, same), (written.data, filter));
    }
}

fn progressed(input: &[u8]) {
    let event = recorded(input.to_vec(), "");
    if let Ok(written) = gesta_groups::core::progressed(&event) {
        let again = gesta_groups::core::progressed(&recorded(written.data.clone(), ""));
        assert_eq!(
            again.expect("what is written can be read").data,
            written.data
        );
    }
}

/// Requests to set timers, which anybody may append, and states of owners.
fn timers(input: &[u8]) {
    let event = recorded(input.to_vec(), "");
    if let Ok(timer) = gesta_timers::core::request(&event) {
        assert!((1..=gesta_timers::KEY_BYTES_MAX).contains(&timer.key.len()));
        assert!((0..=Timestamp::MAX.0).contains(&timer.due.0));
        assert_eq!(timer.id, event.id);
    }
    if let Ok((timers, is_next)) = gesta_timers::core::state(&event, Revision(0)) {
        assert!(timers.len() <= input.len());
        assert_ne!(is_next, Some(false), "nothing is before the first request");
    }
}

fn text_of_tags(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        assert_eq!(tags_to_text(&tags_from_text(text)).as_deref(), Some(text));
    }
}

/// A link leads to the event that its data name, and is written so.
fn link(input: &[u8]) {
    let (data, metadata) = two(input);
    let event = RecordedEvent {
        event_type: event_type("$>"),
        ..recorded(data.to_vec(), metadata.to_vec())
    };
    let Some(target) = LinkTarget::of(&event) else {
        return;
    };
    let to = RecordedEvent {
        stream: target.stream.clone(),
        revision: target.revision,
        ..event.clone()
    };
    let written = virtual_link(&stream("$ce-cart"), Revision(0), &to);
    assert_eq!(LinkTarget::of(&written), Some(target.clone()));
    let parked = EventData::binary(event.event_type, event.data).with_metadata(event.metadata);
    if let Some((stream, revision, _)) = parked_event(&parked) {
        assert_eq!((stream, revision), (target.stream, target.revision));
    }
}

/// A row that is changed in one place has another checksum.
fn checksum(mut input: &[u8]) {
    let place = byte(&mut input);
    let (data, metadata) = two(input);
    let event_id = Uuid::from_u128(1);
    let row = RawRow {
        log: LogId(0),
        position: 9,
        stream: 1,
        revision: 2,
        event_id: event_id.as_bytes(),
        event_type: 3,
        created: 4,
        content_type: 0,
        writer: 5,
        data,
        metadata,
    };
    let tag = String::from_utf8_lossy(metadata);
    let of = |row: RawRow<'_>| row.checksum([&*tag].into_iter());
    let mut other = data.to_vec();
    other.push(place);
    let changed = [
        RawRow {
            position: 10,
            ..row
        },
        RawRow { revision: 3, ..row },
        RawRow {
            data: metadata,
            metadata: &other,
            ..row
        },
        RawRow {
            data: &other,
            ..row
        },
    ];
    let whole = of(row);
    assert_eq!(of(row), whole);
    for changed in changed {
        assert_ne!(of(changed), whole);
    }
}

/// Rules and places of imports.
fn import(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(place) = text.parse::<Place>() {
        assert_eq!(place.to_string().parse::<Place>().ok(), Some(place));
    }
    if let Ok(rule) = text.parse::<NameRule>() {
        assert_eq!(rule.to_string(), text);
        assert_eq!(rule.to_string().parse::<NameRule>().ok(), Some(rule));
    }
    if let Ok(TypeRule::Table(table)) = TypeRule::table(input) {
        assert!(table.values().all(|to| EventType::new(to.as_str()).is_ok()));
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let words = (0..600_u32).map(|n| format!("seat-{} ", n.wrapping_mul(2_654_435_761) >> 15));
    let words: String = words.collect();
    let packed = postgres::pack(&stream("s"), ContentType::Binary, words.as_bytes());
    let packed = packed.expect("words are compressed");
    let give_way = Signal::GiveWay {
        log: LogId(3),
        by: id(4),
        needed: std::time::Duration::from_micros(51_200),
        waited: std::time::Duration::ZERO,
    };
    let appended = Signal::Appended {
        log: LogId(3),
        position: Position(9),
    };
    let told = |signal| postgres::payload(id(2), &signal).expect("it is sent");
    let state = Lifecycle {
        metadata: StreamMetadata::parse(r#"{"$maxCount": 3, "owner":"x"}"#).expect("valid"),
        deleted_before: Revision(5),
        tombstoned: false,
    };
    let state = state.to_event(LifecycleChange::Metadata);
    let state = [&state.data[..], b"\0", &state.metadata].concat();
    let (life, run, born) = (id(1), id(2), incarnation());
    let configuration = format!(
        r#"{{"life":"{life}","begin":0,"parked_from":0,"settings":{{"start":"end"}},"filter":[{{"types":["a"]}}],"incarnation":"{born}"}}"#
    );
    let mark = format!(r#"{{"at":8,"id":"{run}","position":9,"created":1}}"#);
    let progress = format!(r#"{{"life":"{life}","run":"{run}","next":9,"marks":[{mark}]}}"#);
    let due = "2026-09-21T14:13:20.000001Z";
    let timer = format!(r#"{{"key":"cancel-7","due":"{due}","data":{{"seat": [7]}}}}"#);
    let kept = format!(r#"{{"id":"{life}","key":"cancel-7","due":"{due}"}}"#);
    let through = format!(r#"{{"revision":7,"id":"{life}"}}"#);
    let owner = format!(
        r#"{{"owner":"{run}","does":{{"kept":{{"part":0,"of":1,"through":{through},"timers":[{kept}]}}}}}}"#
    );
    let link = format!("7@cart-1\0{{\"eventId\":\"{life}\",\"life\":\"{run}\"}}");
    vec![
        ("unpacked", after(&[0, 3], &packed)),
        ("plain", after(&[0, 1], "{}")),
        ("packed", after(&[1], &words[..1_200])),
        ("appended", after(&[2], told(appended))),
        ("give_way", after(&[2], told(give_way))),
        ("state", after(&[3], state)),
        (
            "metadata",
            after(&[4], r#"{"$maxAge":10,"$maxCount":1e1,"$tb":3.0}"#),
        ),
        (
            "deleted",
            after(&[4], r#"{"$tb":9223372036854775807,"owner":"x"}"#),
        ),
        ("configuration", after(&[5], configuration)),
        ("progress", after(&[6], progress)),
        ("timer", after(&[7], timer)),
        ("owner", after(&[7], owner)),
        ("tags", after(&[8], "cart:1\ngröße")),
        ("link", after(&[9], link)),
        ("row", after(&[10, 7], b"data\0metadata")),
        ("place", after(&[11], "740.12")),
        ("names", after(&[11], "{category:lower}-{id}")),
        (
            "types",
            after(&[11], r#"{"com.example.Deposited":"deposited"}"#),
        ),
    ]
}
