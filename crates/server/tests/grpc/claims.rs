//! Tests what calls that write are told of a stream that is not as they claim, and what they cannot write.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use gesta_core::limits;
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::rpc::{ErrorInfo, Status};
use gesta_grpc::messages::server_errors::AccessDeniedErrorDetails;
use gesta_grpc::messages::shared::{
    Empty, MaximumAppendSizeExceeded, WrongExpectedVersion, wrong_expected_version,
};
use gesta_grpc::messages::streams::append_req::options::ExpectedStreamRevision;
use gesta_grpc::messages::streams::append_req::{Content, Options};
use gesta_grpc::messages::streams::append_resp::{self, success, wrong_expected_version as wrong};
use gesta_grpc::messages::streams::batch_append_req::options::ExpectedStreamPosition;
use gesta_grpc::messages::streams::batch_append_req::{self, ProposedMessage};
use gesta_grpc::messages::streams::batch_append_resp::Result as BatchResult;
use gesta_grpc::messages::streams::delete_req::{self, options};
use gesta_grpc::messages::streams::{
    AppendReq, AppendResp, BatchAppendReq, BatchAppendResp, DeleteReq,
};
use gesta_grpc::messages::v2::consistency_check::{self, StreamStateCheck};
use gesta_grpc::messages::v2::errors::{
    AppendTransactionSizeExceededErrorDetails, consistency_violation,
};
use gesta_grpc::messages::v2::{self, errors};
use gesta_memory::MemoryStore;
use gesta_server::Config;
use prost::Message;
use uuid::Uuid;

use crate::client::Client;
use crate::connection::{Ended, soon};
use crate::requests::{APPEND, appending, bytes_of, identifier};

pub(crate) const BATCHES: &str = "/event_store.client.streams.Streams/BatchAppend";
const STREAMS: &str = "/event_store.client.streams.Streams";
const RECORDS: &str = "/kurrentdb.protocol.v2.streams.StreamsService/AppendRecords";
const SESSION: &str = "/kurrentdb.protocol.v2.streams.StreamsService/AppendSession";

fn claiming(stream: &str, claim: ExpectedStreamRevision) -> AppendReq {
    AppendReq {
        content: Some(Content::Options(Options {
            stream_identifier: Some(identifier(stream)),
            expected_stream_revision: Some(claim),
        })),
    }
}

fn deleting(stream: &str, claim: options::ExpectedStreamRevision) -> [DeleteReq; 1] {
    [DeleteReq {
        options: Some(delete_req::Options {
            stream_identifier: Some(identifier(stream)),
            expected_stream_revision: Some(claim),
        }),
    }]
}

/// Makes an event of `bytes` bytes.
pub(crate) fn proposed(bytes: usize) -> ProposedMessage {
    ProposedMessage {
        id: Some(ids::uuid(Uuid::new_v4(), UuidForm::Text)),
        metadata: [("type", "added"), ("content-type", "application/json")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        data: Bytes::from(vec![b'1'; bytes]),
        ..ProposedMessage::default()
    }
}

/// Makes a whole batch.
pub(crate) fn batch(
    stream: &str,
    claim: ExpectedStreamPosition,
    events: Vec<ProposedMessage>,
) -> BatchAppendReq {
    BatchAppendReq {
        correlation_id: Some(ids::uuid(Uuid::new_v4(), UuidForm::Text)),
        options: Some(batch_append_req::Options {
            stream_identifier: Some(identifier(stream)),
            expected_stream_position: Some(claim),
            deadline_option: None,
        }),
        proposed_messages: events,
        is_final: true,
    }
}

/// Returns the error of a batch, and the message in its detail.
fn error_of<M: Message + Default>(answer: BatchAppendResp, name: &str) -> (Status, M) {
    let Some(BatchResult::Error(status)) = answer.result else {
        panic!("{answer:?}");
    };
    let [detail] = status.details.as_slice() else {
        panic!("{status:?}");
    };
    let full = format!("type.googleapis.com/event_store.client.{name}");
    assert_eq!(detail.type_url, full);
    let message = M::decode(detail.value.as_slice()).expect("a message");
    (status, message)
}

/// Returns the revision that an append is told of a stream that is not as the append claims.
async fn told_by_append(client: &Client, messages: &[AppendReq]) -> u64 {
    let ended = client.call(APPEND, messages).await;
    let answer = ended.read::<AppendResp>().remove(0);
    let Some(append_resp::Result::WrongExpectedVersion(found)) = answer.result else {
        panic!("{answer:?}");
    };
    match found.current_revision_option {
        Some(wrong::CurrentRevisionOption::CurrentRevision(revision)) => revision,
        other => panic!("{other:?}"),
    }
}

/// The calls told of a deleted stream that it has no revision, or its last one, each its own. Goal: a wrong claim about
/// a deleted stream is told its last revision, which the next event follows, by every call.
#[tokio::test]
async fn a_wrong_claim_about_a_deleted_stream_is_told_its_last_revision() {
    let client = Client::start().await;
    for _ in 0..3 {
        client.call(APPEND, &appending("cart-1", 5)).await;
    }
    let any = || options::ExpectedStreamRevision::Any(Empty {});
    let delete = format!("{STREAMS}/Delete");
    let ended = client.call(&delete, &deleting("cart-1", any())).await;
    assert_eq!(ended.code, 0, "{}", ended.message());
    let [_, event] = appending("cart-1", 5);
    for claim in [1, 7, u64::MAX - 1] {
        let options = claiming("cart-1", ExpectedStreamRevision::Revision(claim));
        assert_eq!(
            told_by_append(&client, &[options.clone(), event.clone()]).await,
            2
        );
        // Without an event nothing but the claim is looked at.
        assert_eq!(told_by_append(&client, &[options]).await, 2);

        let asked = [batch(
            "cart-1",
            ExpectedStreamPosition::StreamPosition(claim),
            vec![proposed(1)],
        )];
        let answer = client.call(BATCHES, &asked).await.read().remove(0);
        let (_, told) = error_of::<WrongExpectedVersion>(answer, "WrongExpectedVersion");
        let last = wrong_expected_version::CurrentStreamRevisionOption::CurrentStreamRevision(2);
        assert_eq!(told.current_stream_revision_option, Some(last));

        for method in ["Delete", "Tombstone"] {
            let asked = deleting("cart-1", options::ExpectedStreamRevision::Revision(claim));
            let ended = client.call(&format!("{STREAMS}/{method}"), &asked).await;
            assert_eq!(ended.code, 9, "{}", ended.message());
            assert_eq!(ended.trailers["exception"], "wrong-expected-version");
            assert_eq!(ended.trailers["actual-version"], "2");
        }
    }
    let ended = client.call(SESSION, &[session("cart-1", Some(7))]).await;
    assert_eq!(ended.code, 9);
    let told: errors::StreamRevisionConflictErrorDetails = last_detail(&ended);
    assert_eq!((told.expected_revision, told.actual_revision), (7, 2));
    // Whoever expects no stream finds none, and may delete it once more.
    let none = options::ExpectedStreamRevision::NoStream(Empty {});
    let ended = client.call(&delete, &deleting("cart-1", none)).await;
    assert_eq!(ended.code, 0, "{}", ended.message());
}

/// A retry of records whose stream had to be deleted was refused: with the first attempt it is there again. Goal: it
/// gets the first answer, and other records are refused with what the stream is.
#[tokio::test]
async fn records_for_a_deleted_stream_may_be_sent_again() {
    let client = Client::start().await;
    client.call(APPEND, &appending("cart-1", 5)).await;
    let any = options::ExpectedStreamRevision::Any(Empty {});
    let delete = format!("{STREAMS}/Delete");
    let ended = client.call(&delete, &deleting("cart-1", any)).await;
    assert_eq!(ended.code, 0, "{}", ended.message());
    let records = |id: Uuid, stream: &str| {
        let mut records = session(stream, None).records;
        records[0].stream = Some(stream.to_owned());
        records[0].record_id = Some(id.to_string());
        let check = StreamStateCheck {
            stream: stream.to_owned(),
            expected_state: -5,
        };
        let r#type = Some(consistency_check::Type::StreamState(check));
        let checks = vec![v2::ConsistencyCheck { r#type }];
        [v2::AppendRecordsRequest { records, checks }]
    };
    let request = records(Uuid::new_v4(), "cart-1");
    let first = client.call(RECORDS, &request).await;
    let first = first.read::<v2::AppendRecordsResponse>().remove(0);
    assert_eq!(first.revisions[0].revision, 1);
    let again = client.call(RECORDS, &request).await;
    assert_eq!(again.read::<v2::AppendRecordsResponse>(), [first]);
    for (stream, actual) in [("cart-1", 1), ("cart-2", -1)] {
        let ended = client.call(RECORDS, &records(Uuid::new_v4(), stream)).await;
        assert_eq!(ended.code, 9, "{}", ended.message());
        let told: errors::AppendConsistencyViolationErrorDetails = last_detail(&ended);
        let Some(consistency_violation::Type::StreamState(state)) = &told.violations[0].r#type
        else {
            panic!("{told:?}");
        };
        assert_eq!((state.expected_state, state.actual_state), (-5, actual));
    }
}

/// What happened: a check that cannot hold made the call tell how many links a virtual stream has, to callers who might
/// read virtual streams, though all its links were hidden from them. So categories and types could be asked for.
#[tokio::test]
async fn no_check_tells_of_a_virtual_stream() {
    let client = Client::start().await;
    client.call(APPEND, &appending("cart-1", 1)).await;
    let check = |stream: &str, expected_state| {
        let stream = stream.to_owned();
        let check = StreamStateCheck {
            stream,
            expected_state,
        };
        let r#type = Some(consistency_check::Type::StreamState(check));
        v2::ConsistencyCheck { r#type }
    };
    for expected in [-6, -5, -4, -2, -1, 0, 7] {
        for beside in [None, Some(check("cart-1", -1))] {
            let mut told = Vec::new();
            for stream in ["$ce-cart", "$ce-none", "$et-none", "$streams", "$$$ce-cart"] {
                let mut records = session("cart-2", None).records;
                records[0].stream = Some("cart-2".to_owned());
                let checks = beside.iter().cloned().chain([check(stream, expected)]);
                let request = v2::AppendRecordsRequest {
                    records,
                    checks: checks.collect(),
                };
                let ended = client.call(RECORDS, &[request]).await;
                let message = ended.message().to_owned();
                assert_eq!(ended.code, 3, "{stream} {expected}: {message}");
                assert!(message.contains("virtual stream"), "{message}");
                told.push(message.trim_end_matches(stream).to_owned());
            }
            assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
        }
    }
}

/// Goal: records are stored only if streams that they are not written to are as the checks claim.
#[tokio::test]
async fn streams_that_are_not_written_to_are_checked() {
    let client = Client::start().await;
    client.call(APPEND, &appending("at-0", 1)).await;
    client.call(APPEND, &appending("deleted", 1)).await;
    client.call(APPEND, &appending("closed", 1)).await;
    let any = || options::ExpectedStreamRevision::Any(Empty {});
    for (call, stream) in [("Delete", "deleted"), ("Tombstone", "closed")] {
        let ended = client
            .call(&format!("{STREAMS}/{call}"), &deleting(stream, any()))
            .await;
        assert_eq!(ended.code, 0, "{}", ended.message());
    }
    for (stream, actual, holds, fails) in [
        ("at-0", 0, &[0, -4][..], &[1, -1, -5, -6][..]),
        ("none", -1, &[-1], &[0, -4, -5, -6]),
        ("deleted", -5, &[0, -1, -5], &[1, -4, -6]),
        ("closed", -6, &[-1, -6], &[0, -4, -5]),
    ] {
        for (expected, is_stored) in holds
            .iter()
            .map(|e| (*e, true))
            .chain(fails.iter().map(|e| (*e, false)))
        {
            let mut records = session("written", None).records;
            records[0].stream = Some("written".to_owned());
            let check = StreamStateCheck {
                stream: stream.to_owned(),
                expected_state: expected,
            };
            let r#type = Some(consistency_check::Type::StreamState(check));
            let checks = vec![v2::ConsistencyCheck { r#type }];
            let request = [v2::AppendRecordsRequest { records, checks }];
            let ended = client.call(RECORDS, &request).await;
            if is_stored {
                assert_eq!(ended.code, 0, "{stream} {expected}: {}", ended.message());
                continue;
            }
            assert_eq!(ended.code, 9, "{stream} {expected}: {}", ended.message());
            let told: errors::AppendConsistencyViolationErrorDetails = last_detail(&ended);
            let Some(consistency_violation::Type::StreamState(state)) = &told.violations[0].r#type
            else {
                panic!("{told:?}");
            };
            assert_eq!(
                (state.expected_state, state.actual_state),
                (expected, actual)
            );
        }
    }
}

/// Goal: a check that expects anything is no check, also of a stream that is not written to, but for a closed stream.
#[tokio::test]
async fn a_check_may_expect_anything() {
    let client = Client::start().await;
    let asked = |checked: &str| {
        let mut records = session("cart-1", None).records;
        records[0].stream = Some("cart-1".to_owned());
        let r#type = Some(consistency_check::Type::StreamState(StreamStateCheck {
            stream: checked.to_owned(),
            expected_state: -2,
        }));
        let checks = vec![v2::ConsistencyCheck { r#type }];
        [v2::AppendRecordsRequest { records, checks }]
    };
    for checked in ["cart-1", "cart-2"] {
        let ended = client.call(RECORDS, &asked(checked)).await;
        assert_eq!(ended.code, 0, "{}", ended.message());
    }
    let any = options::ExpectedStreamRevision::Any(Empty {});
    let tombstone = format!("{STREAMS}/Tombstone");
    assert_eq!(
        client.call(&tombstone, &deleting("cart-1", any)).await.code,
        0
    );
    let ended = client.call(RECORDS, &asked("cart-1")).await;
    assert_eq!(ended.code, 9, "{}", ended.message());
    let told: errors::AppendConsistencyViolationErrorDetails = last_detail(&ended);
    assert_eq!(
        (told.violations.len(), told.violations[0].check_index),
        (1, 0)
    );
}

fn session(stream: &str, expected_revision: Option<i64>) -> v2::AppendRequest {
    v2::AppendRequest {
        stream: stream.to_owned(),
        records: vec![v2::AppendRecord {
            schema: Some(v2::SchemaInfo {
                format: v2::SchemaFormat::Json.into(),
                name: "added".to_owned(),
                id: None,
            }),
            ..v2::AppendRecord::default()
        }],
        expected_revision,
    }
}

/// Returns the last detail of an error of the second version, which is its own.
pub(crate) fn last_detail<M: Message + Default>(ended: &crate::connection::Ended) -> M {
    use base64::Engine as _;
    let text = ended.trailers["grpc-status-details-bin"].as_bytes();
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD.decode(text);
    let status = Status::decode(bytes.expect("base64").as_slice()).expect("a status");
    let last = status.details.last().expect("a detail");
    M::decode(last.value.as_slice()).expect("a message")
}

/// What happened: a delete that expects no stream was refused for a stream that has metadata alone, with the words that
/// it was expected not to be there and is not. Goal: it succeeds, and the metadata are gone; so does one that expects a
/// stream, once: then the stream is deleted to whoever expects it. What is not there at all stays an error.
#[tokio::test]
async fn a_stream_that_has_metadata_alone_can_be_deleted() {
    let client = Client::start().await;
    let delete = format!("{STREAMS}/Delete");
    let no_stream = || options::ExpectedStreamRevision::NoStream(Empty {});
    let exists = || options::ExpectedStreamRevision::StreamExists(Empty {});
    let describe = async |stream: &str| {
        let [options, mut event] = appending(&format!("$${stream}"), 1);
        if let Some(Content::ProposedMessage(event)) = &mut event.content {
            event.data = Bytes::from_static(br#"{"$maxCount":3}"#);
            event
                .metadata
                .insert("type".to_owned(), "$metadata".to_owned());
        }
        assert_eq!(client.call(APPEND, &[options, event]).await.code, 0);
    };
    for (stream, claim) in [("cart-1", no_stream()), ("cart-2", exists())] {
        describe(stream).await;
        let ended = client.call(&delete, &deleting(stream, claim)).await;
        assert_eq!(ended.code, 0, "{}", ended.message());
        let again = client.call(&delete, &deleting(stream, exists())).await;
        assert_eq!(again.code, 9, "{}", again.message());
        assert_eq!(again.trailers["exception"], "stream-deleted");
        let again = client.call(&delete, &deleting(stream, no_stream())).await;
        assert_eq!(again.code, 0, "{}", again.message());
    }
    for claim in [no_stream(), exists()] {
        let ended = client.call(&delete, &deleting("cart-3", claim)).await;
        assert_eq!(ended.trailers["exception"], "wrong-expected-version");
    }
}

/// Goal: the last revision as the claim is no retry, whatever the id: the claim holds, so the event is stored.
#[tokio::test]
async fn an_event_is_stored_again_at_the_very_last_revision() {
    let client = Client::start().await;
    let [options, event] = appending("cart-1", 5);
    client.call(APPEND, &[options, event.clone()]).await;
    let last = claiming("cart-1", ExpectedStreamRevision::Revision(0));
    let ended = client.call(APPEND, &[last, event]).await;
    let answer = ended.read::<AppendResp>().remove(0);
    let Some(append_resp::Result::Success(stored)) = answer.result else {
        panic!("{answer:?}");
    };
    let second = success::CurrentRevisionOption::CurrentRevision(1);
    assert_eq!(stored.current_revision_option, Some(second));
}

/// What happened: more events than an append may have, metadata that are too large, and a message that is too large
/// were refused in ways of which clients make no exception of their own. Goal: whichever limit an append breaks, a
/// batch is told that it is too large, and which limit it is; the call goes on.
#[tokio::test]
async fn a_batch_is_told_that_it_is_too_large_whichever_limit_it_breaks() {
    let client = Client::start().await;
    let (event_max, metadata_max) = (limits::EVENT_BYTES_MAX, limits::STREAM_METADATA_BYTES_MAX);
    let large = proposed(event_max + 1);
    let id = ids::read_uuid("id", large.id.as_ref()).expect("an id").0;
    let many = || {
        (0..=limits::APPEND_EVENTS_MAX)
            .map(|_| proposed(1))
            .collect()
    };
    let cases = [
        (
            "cart-1",
            vec![large],
            event_max,
            format!("event {id} of {} bytes", event_max + 1),
        ),
        (
            "cart-1",
            many(),
            limits::APPEND_BYTES_MAX,
            "10000 events, found 10001".to_owned(),
        ),
        (
            "$$cart-1",
            vec![proposed(metadata_max + 1)],
            metadata_max,
            "65536".to_owned(),
        ),
    ];
    for (stream, events, most, rule) in cases {
        let asked = [batch(stream, ExpectedStreamPosition::Any(()), events)];
        let answer = client.call(BATCHES, &asked).await.read().remove(0);
        let name = "MaximumAppendSizeExceeded";
        let (status, told) = error_of::<MaximumAppendSizeExceeded>(answer, name);
        assert_eq!(status.code, 3);
        assert!(status.message.contains(&rule), "{}", status.message);
        assert_eq!(usize::try_from(told.max_append_size), Ok(most));
    }
}

/// Goal: the same of the other calls that append: by their number, by one of them, and by the size of a message.
#[tokio::test]
async fn appends_that_are_too_large_are_the_exception_that_clients_know() {
    let client = Client::start().await;
    let [options, event] = appending("cart-1", 1);
    let too_many = std::iter::once(options).chain(vec![event; limits::APPEND_EVENTS_MAX + 1]);
    let mut cut = bytes_of(&appending("cart-1", 1)).to_vec();
    // The head of a message of which nothing more comes.
    cut.extend([0, 0xff, 0xff, 0xff, 0xff]);
    for bytes in [
        bytes_of(&too_many.collect::<Vec<_>>()),
        bytes_of(&appending("cart-1", limits::EVENT_BYTES_MAX + 1)),
        cut.into(),
    ] {
        let ended = client.call_bytes(APPEND, &[], bytes).await;
        assert_eq!(ended.code, 3, "{}", ended.message());
        assert_eq!(ended.trailers["exception"], "maximum-append-size-exceeded");
        assert!(ended.trailers.contains_key("maximum-append-size"));
    }
    let head = bytes::Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff]);
    for path in [SESSION, RECORDS] {
        let ended = client.call_bytes(path, &[], head.clone()).await;
        assert_eq!(ended.code, 10, "{}", ended.message());
        last_detail::<AppendTransactionSizeExceededErrorDetails>(&ended);
    }
}

/// Goal: a refused append of the second version says in its details that it was refused, and what.
#[tokio::test]
async fn a_refused_append_of_the_second_version_has_details() {
    let world = crate::access::world().await;
    for (method, bytes) in [
        ("AppendSession", bytes_of(&[session("$x", None)])),
        ("AppendRecords", {
            let mut records = session("$x", None).records;
            records[0].stream = Some("$x".to_owned());
            let checks = Vec::new();
            bytes_of(&[v2::AppendRecordsRequest { records, checks }])
        }),
    ] {
        let path = format!("/kurrentdb.protocol.v2.streams.StreamsService/{method}");
        let user = crate::access::basic("user");
        let headers = [("authorization", user.as_str())];
        let ended = world.client.call_bytes(&path, &headers, bytes).await;
        assert_eq!(ended.code, 7, "{}", ended.message());
        assert_eq!(ended.trailers["exception"], "access-denied");
        let told: AccessDeniedErrorDetails = last_detail(&ended);
        assert_eq!(told.operation, method);
    }
}

/// A session with more streams or records than an append may have was held against each stream of the store first.
/// Goal: it is refused when the one too many comes, also while the session goes on.
#[tokio::test]
async fn a_session_is_refused_when_it_has_too_much() {
    let client = Client::start().await;
    let of_stream = |number: usize| session(&format!("cart-{number}"), Some(0));
    let most = gesta_core::limits::APPEND_STREAMS_MAX;
    let streams: Vec<_> = (0..=most).map(of_stream).collect();
    let most = gesta_core::limits::APPEND_EVENTS_MAX;
    let mut records = session("cart-1", None);
    records.records = vec![records.records[0].clone(); most + 1];
    for (asked, rule) in [
        (streams, "must be of at most 1000 streams, found 1001"),
        (vec![records], "must be at most 10000, found 10001"),
    ] {
        let mut call = client.open(SESSION, &[]).await;
        call.send_bytes(bytes_of(&asked)).await;
        // The client does not say that nothing more comes.
        let ended = call.end().await;
        assert_eq!(ended.code, 10, "{}", ended.message());
        assert!(ended.message().contains(rule), "{}", ended.message());
        last_detail::<AppendTransactionSizeExceededErrorDetails>(&ended);
    }
}

/// Only refusals of the calls themselves had the details of version 2. Goal: so have those of the frame around them: a
/// deadline that is over, a server that has no place.
#[tokio::test]
async fn refusals_before_a_call_have_details_too() {
    let config = Config {
        requests_in_flight_max: 1,
        ..Config::default()
    };
    let client = Client::with(config, Arc::new(MemoryStore::new())).await;
    let reason = |ended: &Ended| {
        let text = ended.trailers["grpc-status-details-bin"].as_bytes();
        let bytes = STANDARD_NO_PAD.decode(text).expect("base64");
        let status = Status::decode(bytes.as_slice()).expect("a status");
        let info = ErrorInfo::decode(status.details[0].value.as_slice()).expect("a message");
        (ended.code, info.reason)
    };
    let waiting = client.open(RECORDS, &[]).await;
    // The first call has the only place once it has come.
    let refused = soon(async {
        loop {
            let ended = client.call(SESSION, &[Empty {}]).await;
            if ended.code == 14 {
                return ended;
            }
        }
    })
    .await;
    assert_eq!(reason(&refused), (14, "SERVER_OVERLOADED".to_owned()));
    drop(waiting);
    // Its place is free a moment later.
    let late = soon(async {
        loop {
            let call = client.open(RECORDS, &[("grpc-timeout", "1S")]).await;
            let ended = call.end().await;
            if ended.code != 14 {
                return ended;
            }
        }
    })
    .await;
    assert_eq!(reason(&late), (4, "OPERATION_TIMEOUT".to_owned()));
}
