//! Every kind of call, and the status that each kind of caller gets.
//!
//! Tests of other crates include this file. Of the tests of this crate it names only the requests and the connection.

use bytes::Bytes;
use gesta_grpc::ids;
use gesta_grpc::messages::groups;
use gesta_grpc::messages::monitoring::StatsReq;
use gesta_grpc::messages::operations::{StartScavengeReq, start_scavenge_req};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::append_req;
use gesta_grpc::messages::streams::batch_append_req::ProposedMessage;
use gesta_grpc::messages::streams::batch_append_req::{Options as BatchOptions, options};
use gesta_grpc::messages::streams::read_req;
use gesta_grpc::messages::streams::read_req::options::{AllOptions, StreamOption, all_options};
use gesta_grpc::messages::streams::{AppendReq, BatchAppendReq, BatchAppendResp, DeleteReq};
use gesta_grpc::messages::v2;
use uuid::Uuid;

use crate::connection::Connection;
use crate::requests::{
    GROUPS, appending, bytes_of, consuming, following, identifier, read_of, reading,
};

const STREAMS: &str = "/event_store.client.streams.Streams";
const SESSIONS: &str = "/kurrentdb.protocol.v2.streams.StreamsService";
/// Metadata with the rights of the stream `team`.
pub(crate) const OF_TEAM: &str =
    r#"{"$acl":{"$r":"team","$w":["team"],"$mr":"team","$d":"team","$mw":"team"}}"#;

/// The status for each caller: nobody, a wrong password, a user, one of the group `team`, an operator, an
/// administrator; tokens to read, to append, of an administrator, and of the stream `open` alone. 16: the caller has
/// not proved who they are; 7: the caller may not do this; 9: the delete is not as expected, so it would have been
/// allowed; 4: the call went on until its deadline.
pub(crate) type Codes = [i32; 10];

const ANY: Codes = [0; 10];
const READERS: Codes = [16, 16, 0, 0, 0, 0, 0, 7, 0, 0];
/// Callers who may consume from a group on such a stream.
const CONSUMERS: Codes = [16, 16, 0, 0, 0, 0, 7, 7, 0, 0];
const WRITERS: Codes = [16, 16, 0, 0, 0, 0, 7, 0, 0, 0];
/// Callers who may delete, and change the metadata of, a stream that says nothing of its rights.
const CHANGERS: Codes = [16, 16, 0, 0, 0, 0, 7, 7, 0, 7];
const TEAM: Codes = [16, 16, 7, 0, 7, 0, 7, 7, 0, 7];
const OPERATORS: Codes = [16, 16, 7, 7, 0, 0, 7, 7, 0, 7];
const ADMINS: Codes = [16, 16, 7, 7, 7, 0, 7, 7, 0, 7];

/// Calls that not even administrators may make.
const NOBODY: Codes = [16, 16, 7, 7, 7, 7, 7, 7, 7, 7];

/// Makes the same row with another status for callers who may make the call.
fn with(code: i32, row: Codes) -> Codes {
    row.map(|found| if found == 0 { code } else { found })
}

pub(crate) fn append(stream: &str) -> Bytes {
    bytes_of(&appending(stream, 5))
}

/// Makes a change of the metadata of a stream, as an append.
fn describe(stream: &str, metadata: &'static str) -> Bytes {
    let [options, event] = appending(&format!("$${stream}"), 0);
    let Some(append_req::Content::ProposedMessage(mut event)) = event.content else {
        panic!("an event");
    };
    event.data = metadata.into();
    event.metadata.insert("type".into(), "$metadata".into());
    let content = Some(append_req::Content::ProposedMessage(event));
    bytes_of(&[options, AppendReq { content }])
}

pub(crate) fn batch(stream: &str) -> Bytes {
    let id = || Some(ids::uuid(Uuid::new_v4(), ids::UuidForm::Text));
    let metadata = [("type", "added"), ("content-type", "application/json")];
    bytes_of(&[BatchAppendReq {
        correlation_id: id(),
        options: Some(BatchOptions {
            stream_identifier: Some(identifier(stream)),
            expected_stream_position: Some(options::ExpectedStreamPosition::Any(())),
            deadline_option: None,
        }),
        proposed_messages: vec![ProposedMessage {
            id: id(),
            metadata: metadata
                .map(|(key, value)| (key.into(), value.into()))
                .into(),
            data: Bytes::from_static(b"1"),
            ..ProposedMessage::default()
        }],
        is_final: true,
    }])
}

fn record(stream: Option<&str>) -> v2::AppendRecord {
    v2::AppendRecord {
        schema: Some(v2::SchemaInfo {
            format: v2::SchemaFormat::Json.into(),
            name: "added".into(),
            id: None,
        }),
        data: Bytes::from_static(b"1"),
        stream: stream.map(str::to_owned),
        ..v2::AppendRecord::default()
    }
}

fn session(streams: &[&str]) -> Bytes {
    let part = |stream: &&str| v2::AppendRequest {
        stream: (*stream).to_owned(),
        records: vec![record(None)],
        expected_revision: None,
    };
    bytes_of(&streams.iter().map(part).collect::<Vec<_>>())
}

fn records(streams: &[&str]) -> Bytes {
    let records = streams.iter().map(|stream| record(Some(stream)));
    bytes_of(&[v2::AppendRecordsRequest {
        records: records.collect(),
        checks: Vec::new(),
    }])
}

pub(crate) fn read(stream: &str) -> Bytes {
    bytes_of(&reading(read_of(stream)))
}

fn follow(stream: &str) -> Bytes {
    bytes_of(&reading(following(stream)))
}

/// Makes a read of all events.
pub(crate) fn all(options: read_req::Options) -> Bytes {
    bytes_of(&reading(read_req::Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::Start(Empty {})),
        })),
        ..options
    }))
}

/// Makes a delete that is never as expected, so that nothing is deleted.
fn delete(stream: &str) -> Bytes {
    use gesta_grpc::messages::streams::delete_req::Options;
    use gesta_grpc::messages::streams::delete_req::options::ExpectedStreamRevision;
    bytes_of(&[DeleteReq {
        options: Some(Options {
            stream_identifier: Some(identifier(stream)),
            expected_stream_revision: Some(ExpectedStreamRevision::Revision(u64::MAX)),
        }),
    }])
}

/// Makes a request to create or change a group; `None` stands for a group on all events.
fn group(stream: Option<&str>, name: &str) -> Bytes {
    use groups::create_req::options::StreamOption;
    use groups::create_req::settings::{CheckpointAfter, MessageTimeout};
    use groups::create_req::{AllOptions, Options, Settings, StreamOptions};
    use groups::create_req::{all_options, stream_options};
    let source = match stream {
        Some(stream) => StreamOption::Stream(StreamOptions {
            stream_identifier: Some(identifier(stream)),
            revision_option: Some(stream_options::RevisionOption::Start(Empty {})),
        }),
        None => StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::Start(Empty {})),
            filter_option: None,
        }),
    };
    let settings = Settings {
        max_retry_count: 10,
        min_checkpoint_count: 10,
        max_checkpoint_count: 1_000,
        live_buffer_size: 500,
        read_batch_size: 20,
        history_buffer_size: 500,
        consumer_strategy: "RoundRobin".into(),
        message_timeout: Some(MessageTimeout::MessageTimeoutMs(30_000)),
        checkpoint_after: Some(CheckpointAfter::CheckpointAfterMs(2_000)),
        ..Settings::default()
    };
    bytes_of(&[groups::CreateReq {
        options: Some(Options {
            stream_option: Some(source),
            group_name: name.into(),
            settings: Some(settings),
            ..Options::default()
        }),
    }])
}

fn info(stream: &str) -> Bytes {
    use groups::get_info_req::Options;
    use groups::get_info_req::options::StreamOption;
    bytes_of(&[groups::GetInfoReq {
        options: Some(Options {
            group_name: "g".into(),
            stream_option: Some(StreamOption::StreamIdentifier(identifier(stream))),
        }),
    }])
}

fn drop_group(stream: &str, name: &str) -> Bytes {
    use groups::delete_req::Options;
    use groups::delete_req::options::StreamOption;
    bytes_of(&[groups::DeleteReq {
        options: Some(Options {
            group_name: name.into(),
            stream_option: Some(StreamOption::StreamIdentifier(identifier(stream))),
        }),
    }])
}

fn replay(stream: &str) -> Bytes {
    use groups::replay_parked_req::Options;
    use groups::replay_parked_req::options::StreamOption;
    bytes_of(&[groups::ReplayParkedReq {
        options: Some(Options {
            group_name: "g".into(),
            stream_option: Some(StreamOption::StreamIdentifier(identifier(stream))),
            stop_at_option: None,
        }),
    }])
}

/// Makes a request for the groups of a stream, or for all groups.
fn list(stream: Option<&str>) -> Bytes {
    use groups::list_req::options::ListOption;
    use groups::list_req::stream_option;
    let option = match stream {
        None => ListOption::ListAllSubscriptions(Empty {}),
        Some(stream) => ListOption::ListForStream(groups::list_req::StreamOption {
            stream_option: Some(stream_option::StreamOption::Stream(identifier(stream))),
        }),
    };
    let list_option = Some(option);
    bytes_of(&[groups::ListReq {
        options: Some(groups::list_req::Options { list_option }),
    }])
}

/// Makes what a caller sends, which may differ from caller to caller.
pub(crate) type Sent = Box<dyn Fn(usize) -> Bytes>;

/// A path, what is sent, and the status for each caller.
pub(crate) type Row = (String, Sent, Codes);

fn streams(method: &str) -> String {
    format!("{STREAMS}/{method}")
}

/// Sends the same bytes for each caller.
fn same(bytes: Bytes) -> Sent {
    Box::new(move |_| bytes.clone())
}

/// Sends bytes that name something new for each caller.
fn named(make: fn(&str) -> Bytes) -> Sent {
    Box::new(move |n| make(&format!("new-{n}")))
}

fn nothing() -> Sent {
    same(bytes_of(&[Empty {}]))
}

/// Returns all calls: about the streams `open`, `team` and `$x`, of which the first two have a group `g`.
pub(crate) fn rows() -> Vec<Row> {
    let rows = [
        appends(),
        reads(),
        deletes(),
        calls_of_groups(),
        calls_of_the_server(),
    ];
    rows.into_iter().flatten().collect()
}

/// Returns appends, and changes of the metadata of streams.
fn appends() -> Vec<Row> {
    let sessions = |method: &str| format!("{SESSIONS}/{method}");
    vec![
        (streams("Append"), same(append("open")), WRITERS),
        (streams("Append"), same(append("team")), TEAM),
        (streams("Append"), same(append("$x")), ADMINS),
        // What is no event of an account is refused to those who may write one.
        (
            streams("Append"),
            same(append("$user-user")),
            with(3, ADMINS),
        ),
        (streams("Append"), same(describe("open", "{}")), CHANGERS),
        (streams("Append"), same(describe("team", OF_TEAM)), TEAM),
        (
            streams("Append"),
            same(describe("$user-user", "{}")),
            NOBODY,
        ),
        (streams("BatchAppend"), same(batch("open")), WRITERS),
        (streams("BatchAppend"), same(batch("team")), TEAM),
        (streams("BatchAppend"), same(batch("$x")), ADMINS),
        (sessions("AppendSession"), same(session(&["open"])), WRITERS),
        (
            sessions("AppendSession"),
            same(session(&["open", "team"])),
            TEAM,
        ),
        (sessions("AppendRecords"), same(records(&["open"])), WRITERS),
        (
            sessions("AppendRecords"),
            same(records(&["open", "$x"])),
            ADMINS,
        ),
    ]
}

/// Returns reads and subscriptions.
fn reads() -> Vec<Row> {
    vec![
        (streams("Read"), same(read("open")), READERS),
        (streams("Read"), same(read("team")), TEAM),
        (streams("Read"), same(read("$$open")), READERS),
        (streams("Read"), same(read("$$team")), TEAM),
        (streams("Read"), same(read("$user-user")), ADMINS),
        (streams("Read"), same(read("$ce-open")), ADMINS),
        (streams("Read"), same(read("$et-T")), ADMINS),
        (streams("Read"), same(read("$streams")), ADMINS),
        (streams("Read"), same(all(read_of("x"))), READERS),
        (streams("Read"), same(follow("open")), with(4, READERS)),
        (streams("Read"), same(follow("team")), with(4, TEAM)),
        (streams("Read"), same(follow("$user-user")), with(4, ADMINS)),
        (streams("Read"), same(follow("$ce-open")), with(4, ADMINS)),
        (streams("Read"), same(all(following("x"))), with(4, READERS)),
    ]
}

/// Returns deletes and tombstones.
fn deletes() -> Vec<Row> {
    vec![
        (streams("Delete"), same(delete("open")), with(9, CHANGERS)),
        (streams("Delete"), same(delete("team")), with(9, TEAM)),
        (streams("Delete"), same(delete("$user-user")), NOBODY),
        (
            streams("Tombstone"),
            same(delete("open")),
            with(9, CHANGERS),
        ),
        (streams("Tombstone"), same(delete("team")), with(9, TEAM)),
        (streams("Tombstone"), same(delete("$access")), NOBODY),
    ]
}

/// Returns calls about groups. Groups show events: a caller who may read these may consume; a caller who may also
/// manage groups may change groups.
fn calls_of_groups() -> Vec<Row> {
    let of_groups = |method: &str| format!("{GROUPS}/{method}");
    vec![
        (of_groups("Read"), same(consuming("open")), CONSUMERS),
        (of_groups("Read"), same(consuming("team")), TEAM),
        (of_groups("GetInfo"), same(info("open")), READERS),
        (of_groups("GetInfo"), same(info("team")), TEAM),
        (of_groups("List"), same(list(None)), OPERATORS),
        (of_groups("List"), same(list(Some("open"))), READERS),
        (of_groups("List"), same(list(Some("team"))), TEAM),
        (
            of_groups("Update"),
            same(group(Some("open"), "g")),
            OPERATORS,
        ),
        (of_groups("Update"), same(group(Some("team"), "g")), ADMINS),
        (of_groups("ReplayParked"), same(replay("open")), OPERATORS),
        (of_groups("ReplayParked"), same(replay("team")), ADMINS),
        (
            of_groups("Create"),
            named(|name| group(Some("open"), name)),
            OPERATORS,
        ),
        (
            of_groups("Create"),
            named(|name| group(Some("team"), name)),
            ADMINS,
        ),
        (of_groups("Create"), named(|name| group(None, name)), ADMINS),
        (
            of_groups("Delete"),
            named(|name| drop_group("open", name)),
            OPERATORS,
        ),
        (of_groups("RestartSubsystem"), nothing(), OPERATORS),
    ]
}

/// Returns calls about the server or the store.
fn calls_of_the_server() -> Vec<Row> {
    let stats = StatsReq {
        use_metadata: false,
        refresh_time_period_in_ms: 100,
    };
    let negative = StartScavengeReq {
        options: Some(start_scavenge_req::Options {
            thread_count: -1,
            start_from_chunk: 0,
        }),
    };
    let operations = |method: &str| format!("/event_store.client.operations.Operations/{method}");
    vec![
        (
            operations("RestartPersistentSubscriptions"),
            nothing(),
            OPERATORS,
        ),
        (operations("StartScavenge"), nothing(), OPERATORS),
        // Who may not ask for it is told so, whatever else is wrong.
        (
            operations("StartScavenge"),
            same(bytes_of(&[negative])),
            with(3, OPERATORS),
        ),
        (operations("StopScavenge"), nothing(), with(5, OPERATORS)),
        (operations("MergeIndexes"), nothing(), OPERATORS),
        (
            "/event_store.client.monitoring.Monitoring/Stats".into(),
            same(bytes_of(&[stats])),
            with(4, OPERATORS),
        ),
        (
            "/event_store.client.server_features.ServerFeatures/GetSupportedMethods".into(),
            nothing(),
            ANY,
        ),
        (
            "/event_store.client.gossip.Gossip/Read".into(),
            nothing(),
            ANY,
        ),
    ]
}

/// Returns the status of a call that may take `timeout` at most. The answer to a batch has a status of its own.
pub(crate) async fn status(
    connection: &Connection,
    path: &str,
    (authorization, timeout): (&str, &str),
    bytes: Bytes,
) -> i32 {
    let mut headers = vec![("grpc-timeout", timeout)];
    if !authorization.is_empty() {
        headers.push(("authorization", authorization));
    }
    let ended = connection.call_bytes(path, &headers, bytes).await;
    if ended.code != 0 || !path.ends_with("BatchAppend") {
        return ended.code;
    }
    use gesta_grpc::messages::streams::batch_append_resp::Result as Outcome;
    match ended.read::<BatchAppendResp>().remove(0).result {
        Some(Outcome::Error(status)) => status.code,
        _ => 0,
    }
}
