//! What clients send over gRPC: frames, messages, and what they mean.

use std::fmt::Debug;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use gesta_core::{ErrorKind, EventData, Position, StreamId};
use gesta_grpc::batch::{Arriving, Taken};
use gesta_grpc::filter::ClientFilter;
use gesta_grpc::frame::{self, Frames};
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::append_req::options::ExpectedStreamRevision;
use gesta_grpc::messages::streams::append_req::{self, Content};
use gesta_grpc::messages::streams::batch_append_req::options::ExpectedStreamPosition;
use gesta_grpc::messages::streams::read_req::options::filter_options::{
    Expression, Filter as Subject, Window,
};
use gesta_grpc::messages::streams::read_req::options::{FilterOption, FilterOptions};
use gesta_grpc::messages::streams::{
    AppendReq, BatchAppendReq, DeleteReq, ReadReq, batch_append_req, read_req,
};
use gesta_grpc::messages::v2::{AppendRecord, AppendRecordsRequest, AppendRequest, SchemaInfo};
use gesta_grpc::messages::{groups, users};
use gesta_grpc::proposed::{self, Proposed};
use gesta_grpc::request::Bounds;
use gesta_grpc::{Code, Expected, Positions, Refusal, Request, timeout, v2};
use prost::Message;

use crate::Seed;
use crate::pattern::check_pattern;
use crate::sample::{after, byte, id, incarnation, parts, stream};

/// The most bytes of a message of the frames that are tried.
const MESSAGE_BYTES_MAX: usize = 4_096;

/// Messages of each call, their frames, and the words in headers.
pub(crate) fn grpc(mut input: &[u8]) {
    match byte(&mut input) {
        0 => frames(input),
        1 => append(input),
        2 => batches(input),
        3 => read(input),
        4 => {
            if let Some(request) = message::<AppendRequest>(input) {
                records(&request.stream, request.records, input.len());
            }
        }
        5 => {
            if let Some(request) = message::<AppendRecordsRequest>(input) {
                records("cart-1", request.records, input.len());
            }
        }
        6 => {
            if let Some(claim) = message::<DeleteReq>(input).and_then(|request| request.options) {
                claim_of(Expected::of_delete(claim.expected_stream_revision));
            }
        }
        7 => drop(message::<groups::ReadReq>(input)),
        8 => drop(message::<groups::CreateReq>(input)),
        9 => drop(message::<users::CreateReq>(input)),
        _ => words(input),
    }
}

/// A refusal can be told: it has a status, and everything fits into trailers.
fn check_refusal(refusal: &Refusal) {
    assert_ne!(refusal.code, Code::Ok);
    assert!(!refusal.message.is_empty());
    let trailers = refusal.to_trailers();
    assert!(trailers.contains_key("grpc-status"), "{trailers:?}");
    let bytes: usize = trailers.values().map(|value| value.len()).sum();
    assert!(bytes <= 64 * 1_024, "{bytes} bytes of trailers");
}

/// Reads a message. It is written as it was read.
fn message<M: Request + Debug>(bytes: &[u8]) -> Option<M> {
    match frame::read::<M>(Bytes::copy_from_slice(bytes)) {
        Ok(read) => {
            let written = read.encode_to_vec();
            let again: M = frame::read(written.clone().into()).expect("what is written is read");
            // Not the messages: a number may be none (NaN).
            assert_eq!(again.encode_to_vec(), written);
            Some(read)
        }
        Err(refusal) => {
            check_refusal(&refusal);
            None
        }
    }
}

/// Messages come in parts of any size: which they are does not depend on the parts.
fn frames(mut input: &[u8]) {
    let part_bytes = usize::from(byte(&mut input)) + 1;
    let (whole, end) = messages_of(&[input]);
    assert_eq!(messages_of(&parts(input, part_bytes)), (whole.clone(), end));
    let mut written = BytesMut::new();
    for message in &whole {
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        written.extend_from_slice(&[0]);
        let length = u32::try_from(message.len()).expect("small");
        written.extend_from_slice(&length.to_be_bytes());
        written.extend_from_slice(message);
    }
    assert_eq!(messages_of(&[&written]), (whole, None));
}

/// Reads messages up to the first refusal.
fn messages_of(parts: &[&[u8]]) -> (Vec<Bytes>, Option<Refusal>) {
    let mut frames = Frames::new(Bounds {
        bytes_max: MESSAGE_BYTES_MAX,
        ..Bounds::OTHERS
    });
    let mut messages = Vec::new();
    for part in parts {
        let mut data = Bytes::copy_from_slice(part);
        while !data.is_empty() {
            match frames.next(&mut data) {
                Ok(message) => messages.extend(message),
                Err(refusal) => {
                    check_refusal(&refusal);
                    return (messages, Some(refusal));
                }
            }
        }
        assert!(frames.kept_bytes() <= MESSAGE_BYTES_MAX);
    }
    (messages, None)
}

fn claim_of(claim: Result<Expected, Refusal>) {
    match claim {
        Ok(expected) => assert!(!expected.number().is_empty()),
        Err(refusal) => check_refusal(&refusal),
    }
}

fn append(input: &[u8]) {
    match message::<AppendReq>(input).and_then(|request| request.content) {
        Some(Content::Options(options)) => {
            claim_of(Expected::of_append(options.expected_stream_revision));
            if let Err(refusal) = ids::stream(options.stream_identifier.as_ref()) {
                check_refusal(&refusal);
            }
        }
        Some(Content::ProposedMessage(proposed)) => {
            for name in ["cart-1", "$$cart-1"] {
                let event = Proposed::from(proposed.clone()).into_event(&stream(name));
                check_events(event.map(|event| vec![event]), input.len());
            }
        }
        None => {}
    }
}

/// Events hold no more than came, and have an id.
fn check_events(events: Result<Vec<EventData>, Refusal>, message_bytes: usize) {
    match events {
        Ok(mut events) => {
            let before = events.clone();
            proposed::own(&mut events, message_bytes);
            assert_eq!(events, before);
            assert!(events.iter().all(|event| event.id.is_some()));
            let data: usize = events.iter().map(|event| event.data.len()).sum();
            assert!(data <= message_bytes, "more than came");
        }
        Err(refusal) => check_refusal(&refusal),
    }
}

/// Batches in chunks: what is held is counted, and nothing is left of what is answered.
fn batches(input: &[u8]) {
    let now = Instant::now();
    let mut arriving = Arriving::default();
    let (messages, _) = messages_of(&[input]);
    for bytes in messages {
        let Some(chunk) = message::<BatchAppendReq>(&bytes) else {
            break;
        };
        match arriving.take(chunk, bytes.len(), now) {
            Ok(Taken::Whole(batch)) => {
                let events: usize = batch.events.iter().map(EventData::cost_bytes).sum();
                assert!(batch.cost_bytes() >= events);
            }
            Ok(Taken::Refused(answer)) => assert!(answer.result.is_some()),
            Ok(Taken::More) => {}
            Err(refusal) => return check_refusal(&refusal),
        }
    }
    let refused = arriving.refuse_begun_by(now, &Refusal::deadline());
    assert!(refused.iter().all(|answer| answer.correlation_id.is_some()));
    assert_eq!(arriving.oldest(), None);
    assert!(
        arriving.bytes() <= 16 * 1_000,
        "only ids of refused batches"
    );
}

fn read(input: &[u8]) {
    let options = message::<ReadReq>(input).and_then(|request| request.options);
    let Some(FilterOption::Filter(filter)) = options.and_then(|options| options.filter_option)
    else {
        return;
    };
    match ClientFilter::read(filter) {
        Ok(filter) => {
            check_pattern(filter.pattern(), "cart-1");
            if let Err(refusal) = filter.refuse_index() {
                check_refusal(&refusal);
            }
            match filter.checkpoint_interval() {
                Ok(interval) => assert!(interval > 0),
                Err(refusal) => check_refusal(&refusal),
            }
        }
        Err(refusal) => check_refusal(&refusal),
    }
}

/// Records of the second version become events with a JSON object as metadata.
fn records(name: &str, records: Vec<AppendRecord>, message_bytes: usize) {
    let to: StreamId = match v2::stream(name) {
        Ok(stream) => stream,
        Err(refusal) => return check_refusal(&refusal),
    };
    let events = records.into_iter().map(|record| v2::event(record, &to));
    let events: Result<Vec<EventData>, Refusal> = events.collect();
    if let Ok(events) = &events {
        for event in events {
            let metadata: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(&event.metadata).expect("a JSON object");
            assert!(metadata.contains_key("$schema.name"));
        }
    }
    check_events(events, message_bytes);
}

/// Time-outs, positions and ids, as headers and fields have them.
fn words(input: &[u8]) {
    if let Some(first) = input.first_chunk::<8>() {
        let shown = u64::from_be_bytes(*first);
        let of_two = [
            Positions::from(incarnation()),
            Positions::from(incarnation().after(Position(shown >> 8), gesta_core::Timestamp(0))),
        ];
        for positions in of_two {
            match positions.read(shown) {
                Ok(Position::START) => {}
                Ok(position) => assert_eq!(positions.shown(position), shown),
                Err(refusal) => check_refusal(&refusal),
            }
        }
        claim_of(v2::expected(Some(shown.cast_signed())));
    }
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Some(time) = timeout::parse(text) {
        assert!(text.len() <= 9 + 3 && time.as_secs() <= 366 * 24 * 3_600);
    }
    match v2::stream(text) {
        Ok(stream) => assert_eq!(stream.as_str(), text),
        Err(refusal) => check_refusal(&refusal),
    }
    let why = ErrorKind::Unsupported(format!("it has no {text}"));
    check_refusal(&gesta_core::Error::new(why).into());
}

pub(crate) fn seeds() -> Vec<Seed> {
    let structured = || Some(ids::uuid(id(1), UuidForm::Structured));
    let known = [("type", "item-added"), ("content-type", "application/json")];
    let metadata = known.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let cart = || Some(ids::identifier(&stream("cart-1")));
    let options = AppendReq {
        content: Some(Content::Options(append_req::Options {
            stream_identifier: cart(),
            expected_stream_revision: Some(ExpectedStreamRevision::Revision(7)),
        })),
    };
    let event = AppendReq {
        content: Some(Content::ProposedMessage(append_req::ProposedMessage {
            id: Some(ids::uuid(id(1), UuidForm::Text)),
            metadata: metadata.clone().into(),
            custom_metadata: Bytes::from_static(b"{}"),
            data: Bytes::from_static(b"{\"n\":1}"),
        })),
    };
    let chunk = |options: bool, is_final: bool| BatchAppendReq {
        correlation_id: structured(),
        options: options.then(|| batch_append_req::Options {
            stream_identifier: cart(),
            expected_stream_position: Some(ExpectedStreamPosition::Any(())),
            deadline_option: None,
        }),
        proposed_messages: vec![batch_append_req::ProposedMessage {
            id: structured(),
            metadata: metadata.clone().into(),
            ..batch_append_req::ProposedMessage::default()
        }],
        is_final,
    };
    let mut batch = BytesMut::new();
    frame::write(&mut batch, &chunk(true, false));
    frame::write(&mut batch, &chunk(false, true));
    let filter = FilterOptions {
        checkpoint_interval_multiplier: 1,
        filter: Some(Subject::EventType(Expression {
            regex: r"^(?!\$).*".to_owned(),
            prefix: Vec::new(),
        })),
        window: Some(Window::Count(Empty {})),
    };
    let read = ReadReq {
        options: Some(read_req::Options {
            filter_option: Some(FilterOption::Filter(filter)),
            ..read_req::Options::default()
        }),
    };
    let value = |kind| prost_types::Value { kind: Some(kind) };
    let number = prost_types::value::Kind::NumberValue(1.5);
    let list = prost_types::ListValue {
        values: vec![value(number.clone())],
    };
    let record = AppendRecord {
        record_id: Some(id(4).to_string()),
        properties: [
            ("n".to_owned(), value(number)),
            (
                "list".to_owned(),
                value(prost_types::value::Kind::ListValue(list)),
            ),
        ]
        .into(),
        schema: Some(SchemaInfo {
            format: 1,
            name: "item-added".to_owned(),
            id: None,
        }),
        data: Bytes::from_static(b"{}"),
        stream: None,
    };
    let session = AppendRequest {
        stream: "cart-1".to_owned(),
        records: vec![record.clone()],
        expected_revision: Some(-1),
    };
    let several = AppendRecordsRequest {
        records: vec![record],
        checks: Vec::new(),
    };
    vec![
        ("frames", after(&[0, 3], &batch)),
        ("options", after(&[1], options.encode_to_vec())),
        ("event", after(&[1], event.encode_to_vec())),
        ("batch", after(&[2], &batch)),
        ("read", after(&[3], read.encode_to_vec())),
        ("session", after(&[4], session.encode_to_vec())),
        ("records", after(&[5], several.encode_to_vec())),
        ("timeout", after(&[10], "250m")),
        ("position", after(&[10], 300_u64.to_be_bytes())),
    ]
}
