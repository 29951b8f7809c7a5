//! Bad calls: what is sent, and which answers are allowed.
//!
//! Tests of other crates include this file. Of the tests of this crate it names only the requests and the connection.

use bytes::{BufMut, Bytes, BytesMut};
use gesta_grpc::frame;
use gesta_grpc::messages::streams::read_req::options::filter_options;
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, FilterOption, FilterOptions, StreamOption, all_options,
};
use gesta_grpc::messages::streams::read_req::{self};
use gesta_grpc::messages::{groups, shared, streams, v2};
use prost::Message;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};

use crate::connection::{Connection, Ended};
use crate::requests::{APPEND, READ, appending, following, identifier, read_of, reading};

const PATHS: [&str; 34] = [
    READ,
    APPEND,
    "/event_store.client.streams.Streams/BatchAppend",
    "/event_store.client.streams.Streams/Delete",
    "/event_store.client.streams.Streams/Tombstone",
    "/event_store.client.server_features.ServerFeatures/GetSupportedMethods",
    "/event_store.client.gossip.Gossip/Read",
    "/event_store.client.monitoring.Monitoring/Stats",
    "/kurrentdb.protocol.v2.streams.StreamsService/AppendSession",
    "/kurrentdb.protocol.v2.streams.StreamsService/AppendRecords",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/Create",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/Update",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/Delete",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/Read",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/GetInfo",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/ReplayParked",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/List",
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions/RestartSubsystem",
    "/event_store.client.operations.Operations/RestartPersistentSubscriptions",
    "/event_store.client.operations.Operations/StartScavenge",
    "/event_store.client.operations.Operations/StopScavenge",
    "/event_store.client.operations.Operations/MergeIndexes",
    "/event_store.client.operations.Operations/SetNodePriority",
    "/event_store.client.operations.Operations/Shutdown",
    "/event_store.client.users.Users/Create",
    "/event_store.client.users.Users/Update",
    "/event_store.client.users.Users/Delete",
    "/event_store.client.users.Users/Disable",
    "/event_store.client.users.Users/Enable",
    "/event_store.client.users.Users/Details",
    "/event_store.client.users.Users/ChangePassword",
    "/event_store.client.users.Users/ResetPassword",
    "/event_store.client.projections.Projections/Create",
    "/event_store.client.projections.Projections/Statistics",
];

/// Makes one bad call, and returns its status, which must be a precise one, or one of `also`.
pub(crate) async fn attack(client: &Connection, rng: &mut StdRng, also: &[i32]) -> i32 {
    let path = *PATHS.choose(rng).expect("some");
    let (bytes, must_fail) = match rng.random_range(0..6) {
        0 => (random_frame(rng), false),
        1 => (random_bytes(rng, 64).into(), false),
        2 => (cut(rng), true),
        3 => (illegal_read(rng), path == READ),
        _ => (mutated(rng, path), false),
    };
    // What might be a subscription ends soon.
    let timeout = *["30m", "40m", "50m"].choose(rng).expect("some");
    let headers = [
        ("grpc-timeout", timeout),
        ("requires-leader", "true"),
        ("authorization", "Basic !"),
    ];
    let ended = client.call_bytes(path, &headers, bytes.clone()).await;
    check(path, &bytes, &ended, also);
    assert!(!must_fail || ended.code != 0, "{path} took {bytes:?}");
    ended.code
}

fn check(path: &str, bytes: &Bytes, ended: &Ended, also: &[i32]) {
    let precise = matches!(ended.code, 0 | 1 | 3 | 4 | 5 | 6 | 8 | 9 | 10 | 12);
    let precise = precise || also.contains(&ended.code);
    let shown = &bytes[..bytes.len().min(200)];
    assert!(
        precise,
        "{path}: {} {} for {shown:?}",
        ended.code,
        ended.message()
    );
    if ended.code != 0 {
        assert!(
            !ended.message().is_empty(),
            "{path}: {} for {shown:?}",
            ended.code
        );
    }
}

fn random_bytes(rng: &mut StdRng, len_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..=len_max)];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Makes a good frame around random bytes.
fn random_frame(rng: &mut StdRng) -> Bytes {
    let message = random_bytes(rng, 80);
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).expect("short"));
    out.put_slice(&message);
    out.freeze()
}

/// Makes a frame that announces more bytes than come.
fn cut(rng: &mut StdRng) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(rng.random_range(81..u32::MAX));
    out.put_slice(&random_bytes(rng, 80));
    out.freeze()
}

/// Makes a read whose parts do not fit each other, or are not complete.
fn illegal_read(rng: &mut StdRng) -> Bytes {
    let mut options = read_of("cart-1");
    let all = AllOptions {
        all_option: Some(all_options::AllOption::Start(shared::Empty {})),
    };
    let filter = |regex: &str, window| FilterOptions {
        filter: Some(filter_options::Filter::EventType(
            filter_options::Expression {
                regex: regex.into(),
                prefix: Vec::new(),
            },
        )),
        window,
        checkpoint_interval_multiplier: 0,
    };
    let window = Some(filter_options::Window::Max(1));
    match rng.random_range(0..9) {
        0 => options.stream_option = None,
        1 => options.count_option = None,
        2 => options.filter_option = None,
        3 => options.uuid_option = None,
        4 => options.read_direction = rng.random_range(2..100),
        5 => {
            options = following("cart-1");
            options.read_direction = 1;
        }
        6 => options.filter_option = Some(FilterOption::Filter(filter("a", window))),
        7 => {
            options.stream_option = Some(StreamOption::All(all));
            let wrong = *["(", "", "[z-a]", "a{9999999}", "(?<!"]
                .choose(rng)
                .expect("some");
            options.filter_option = Some(FilterOption::Filter(filter(wrong, window)));
        }
        _ => {
            options = read_req::Options {
                stream_option: Some(StreamOption::All(all)),
                ..following("cart-1")
            };
            let window = (rng.random_range(0..2) == 0).then_some(filter_options::Window::Max(0));
            options.filter_option = Some(FilterOption::Filter(filter("a", window)));
        }
    }
    frame::framed(&reading(options)[0])
}

/// Makes good messages of this call, with a few bytes changed, left out or repeated.
fn mutated(rng: &mut StdRng, path: &str) -> Bytes {
    let mut out = BytesMut::new();
    let stream = *["cart-1", "$all", "$$cart-1", "$$$$x", "$ce-x", "a"]
        .choose(rng)
        .expect("some");
    let [options, event] = appending(stream, rng.random_range(0..50));
    let read = if rng.random() {
        read_of(stream)
    } else {
        following(stream)
    };
    let read = &reading(read)[0];
    let times = rng.random_range(1..3);
    for _ in 0..times {
        match path {
            READ => frame::write(&mut out, read),
            APPEND => {
                frame::write(&mut out, &options);
                frame::write(&mut out, &event);
            }
            "/event_store.client.streams.Streams/BatchAppend" => {
                frame::write(&mut out, &batch(rng))
            }
            "/event_store.client.streams.Streams/Delete"
            | "/event_store.client.streams.Streams/Tombstone" => {
                frame::write(&mut out, &delete(rng, stream));
            }
            _ => others(rng, path, stream, &mut out),
        }
    }
    let mut bytes = out.to_vec();
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..3) {
            0 => bytes[at] = rng.random(),
            1 => {
                bytes.remove(at);
            }
            _ => bytes.insert(at, rng.random()),
        }
    }
    bytes.into()
}

/// Writes good messages of a call that is not about streams alone.
fn others(rng: &mut StdRng, path: &str, stream: &str, out: &mut BytesMut) {
    if let Some(method) = path.strip_prefix("/event_store.client.users.Users/") {
        return user(rng, method, out);
    }
    if let Some(method) = path.strip_prefix("/event_store.client.operations.Operations/") {
        return operation(rng, method, out);
    }
    match path.rsplit('/').next().unwrap_or_default() {
        "Create" | "Update" => frame::write(out, &group(rng, stream)),
        "Read" => consumer(rng, stream)
            .iter()
            .for_each(|message| frame::write(out, message)),
        "Delete" => frame::write(out, &drop_group(rng, stream)),
        "GetInfo" => frame::write(out, &info(rng, stream)),
        "ReplayParked" => frame::write(out, &replay(rng, stream)),
        "List" => frame::write(out, &list(rng, stream)),
        "AppendRecords" => frame::write(out, &records(rng, stream)),
        _ => frame::write(out, &session(rng, stream)),
    }
}

/// Writes messages about accounts that do not exist, or that break a rule. A password that is long enough would be
/// hashed.
fn user(rng: &mut StdRng, method: &str, out: &mut BytesMut) {
    use gesta_grpc::messages::users::*;
    let names = ["", "nobody", "$all", "a b", "admin"];
    let login_name = (*names.choose(rng).expect("some")).to_owned();
    let password = "x".repeat(rng.random_range(0..7));
    match method {
        "Create" => frame::write(
            out,
            &CreateReq {
                options: Some(create_req::Options {
                    login_name,
                    password,
                    full_name: "x".repeat(rng.random_range(0..600)),
                    groups: vec!["$admins".to_owned(); rng.random_range(0..80)],
                }),
            },
        ),
        "Update" => frame::write(
            out,
            &UpdateReq {
                options: Some(update_req::Options {
                    login_name,
                    password,
                    ..update_req::Options::default()
                }),
            },
        ),
        "ChangePassword" => frame::write(
            out,
            &ChangePasswordReq {
                options: Some(change_password_req::Options {
                    login_name,
                    current_password: password.clone(),
                    new_password: password,
                }),
            },
        ),
        "ResetPassword" => frame::write(
            out,
            &ResetPasswordReq {
                options: Some(reset_password_req::Options {
                    login_name,
                    new_password: password,
                }),
            },
        ),
        // The others name an account, and all in the same way.
        _ => frame::write(
            out,
            &DeleteReq {
                options: Some(delete_req::Options { login_name }),
            },
        ),
    }
}

fn operation(rng: &mut StdRng, method: &str, out: &mut BytesMut) {
    use gesta_grpc::messages::operations::*;
    match method {
        "StartScavenge" => frame::write(
            out,
            &StartScavengeReq {
                options: Some(start_scavenge_req::Options {
                    thread_count: rng.random(),
                    start_from_chunk: rng.random(),
                }),
            },
        ),
        "StopScavenge" => frame::write(
            out,
            &StopScavengeReq {
                options: Some(stop_scavenge_req::Options {
                    scavenge_id: "\u{7f}x".repeat(rng.random_range(0..40)),
                }),
            },
        ),
        "SetNodePriority" => frame::write(
            out,
            &SetNodePriorityReq {
                priority: rng.random(),
            },
        ),
        _ => frame::write(out, &shared::Empty {}),
    }
}

fn name_of_group(rng: &mut StdRng) -> String {
    (*["g", "", "a::b", "\0", "none"].choose(rng).expect("some")).to_owned()
}

fn drop_group(rng: &mut StdRng, stream: &str) -> groups::DeleteReq {
    use groups::delete_req::Options;
    use groups::delete_req::options::StreamOption;
    let of_all = rng.random_range(0..3) == 0;
    groups::DeleteReq {
        options: Some(Options {
            group_name: name_of_group(rng),
            stream_option: Some(match of_all {
                true => StreamOption::All(shared::Empty {}),
                false => StreamOption::StreamIdentifier(identifier(stream)),
            }),
        }),
    }
}

fn info(rng: &mut StdRng, stream: &str) -> groups::GetInfoReq {
    use groups::get_info_req::Options;
    use groups::get_info_req::options::StreamOption;
    let of_all = rng.random_range(0..3) == 0;
    groups::GetInfoReq {
        options: Some(Options {
            group_name: name_of_group(rng),
            stream_option: Some(match of_all {
                true => StreamOption::All(shared::Empty {}),
                false => StreamOption::StreamIdentifier(identifier(stream)),
            }),
        }),
    }
}

fn replay(rng: &mut StdRng, stream: &str) -> groups::ReplayParkedReq {
    use groups::replay_parked_req::Options;
    use groups::replay_parked_req::options::{StopAtOption, StreamOption};
    let stop_at_option = match rng.random_range(0..3) {
        0 => None,
        1 => Some(StopAtOption::NoLimit(shared::Empty {})),
        _ => Some(StopAtOption::StopAt(rng.random())),
    };
    groups::ReplayParkedReq {
        options: Some(Options {
            group_name: name_of_group(rng),
            stream_option: Some(StreamOption::StreamIdentifier(identifier(stream))),
            stop_at_option,
        }),
    }
}

fn list(rng: &mut StdRng, stream: &str) -> groups::ListReq {
    use groups::list_req::Options;
    use groups::list_req::options::ListOption;
    use groups::list_req::stream_option::StreamOption;
    let stream_option = match rng.random_range(0..3) {
        0 => None,
        1 => Some(StreamOption::All(shared::Empty {})),
        _ => Some(StreamOption::Stream(identifier(stream))),
    };
    let list_option = match rng.random_range(0..3) {
        0 => Some(ListOption::ListAllSubscriptions(shared::Empty {})),
        1 => None,
        _ => Some(ListOption::ListForStream(groups::list_req::StreamOption {
            stream_option,
        })),
    };
    groups::ListReq {
        options: Some(Options { list_option }),
    }
}

/// Makes records with checks. Some checks name a stream twice, or a stream to which the records are not written.
fn records(rng: &mut StdRng, stream: &str) -> v2::AppendRecordsRequest {
    use v2::consistency_check::{StreamStateCheck, Type};
    let mut records = session(rng, stream).records;
    for record in &mut records {
        record.stream = rng.random::<bool>().then(|| stream.to_owned());
    }
    let check = v2::ConsistencyCheck {
        r#type: Some(Type::StreamState(StreamStateCheck {
            stream: (*["", "b", stream].choose(rng).expect("some")).to_owned(),
            expected_state: rng.random_range(-8..5),
        })),
    };
    v2::AppendRecordsRequest {
        records,
        checks: vec![check; rng.random_range(0..3)],
    }
}

fn batch(rng: &mut StdRng) -> streams::BatchAppendReq {
    streams::BatchAppendReq::decode(random_bytes(rng, 4).as_slice()).unwrap_or_else(|_| {
        streams::BatchAppendReq {
            correlation_id: Some(shared::Uuid {
                value: Some(shared::uuid::Value::String(
                    uuid::Uuid::new_v4().to_string(),
                )),
            }),
            is_final: rng.random(),
            ..streams::BatchAppendReq::default()
        }
    })
}

fn delete(rng: &mut StdRng, stream: &str) -> streams::DeleteReq {
    use streams::delete_req::options::ExpectedStreamRevision as Claim;
    let claim = match rng.random_range(0..5) {
        0 => Claim::Revision(rng.random()),
        1 => Claim::NoStream(shared::Empty {}),
        2 => Claim::Any(shared::Empty {}),
        _ => Claim::StreamExists(shared::Empty {}),
    };
    streams::DeleteReq {
        options: Some(streams::delete_req::Options {
            stream_identifier: Some(identifier(stream)),
            expected_stream_revision: Some(claim),
        }),
    }
}

/// Makes a request to create a group, mostly with numbers that a group cannot have.
fn group(rng: &mut StdRng, stream: &str) -> groups::CreateReq {
    use groups::create_req::options::StreamOption;
    use groups::create_req::stream_options::RevisionOption;
    use groups::create_req::{Options, Settings, StreamOptions};
    let start = match rng.random_range(0..3) {
        0 => RevisionOption::Start(shared::Empty {}),
        1 => RevisionOption::End(shared::Empty {}),
        _ => RevisionOption::Revision(rng.random()),
    };
    let settings = if rng.random_range(0..4) == 0 {
        Settings {
            max_retry_count: rng.random(),
            history_buffer_size: rng.random(),
            read_batch_size: rng.random(),
            named_consumer_strategy: rng.random_range(-1..5),
            consumer_strategy: "none".into(),
            ..Settings::default()
        }
    } else {
        Settings {
            live_buffer_size: 10,
            history_buffer_size: 20,
            read_batch_size: 10,
            ..Settings::default()
        }
    };
    groups::CreateReq {
        options: Some(Options {
            stream_option: Some(StreamOption::Stream(StreamOptions {
                stream_identifier: Some(identifier(stream)),
                revision_option: Some(start),
            })),
            group_name: (*["g", "", "a::b", "\0"].choose(rng).expect("some")).into(),
            settings: Some(settings),
            ..Options::default()
        }),
    }
}

/// Makes the messages of a consumer that answers for events that it never got.
fn consumer(rng: &mut StdRng, stream: &str) -> [groups::ReadReq; 2] {
    use groups::read_req::options::{StreamOption, UuidOption, uuid_option};
    use groups::read_req::{Content, Nack, Options};
    let options = Options {
        stream_option: Some(StreamOption::StreamIdentifier(identifier(stream))),
        group_name: "g".into(),
        buffer_size: rng.random_range(-1..5),
        uuid_option: Some(UuidOption {
            content: Some(uuid_option::Content::String(shared::Empty {})),
        }),
    };
    let nack = Nack {
        ids: vec![shared::Uuid {
            value: Some(shared::uuid::Value::String(
                uuid::Uuid::new_v4().to_string(),
            )),
        }],
        action: rng.random_range(-1..7),
        reason: "x".repeat(rng.random_range(0..2_000)),
        ..Nack::default()
    };
    [Content::Options(options), Content::Nack(nack)].map(|content| groups::ReadReq {
        content: Some(content),
    })
}

fn session(rng: &mut StdRng, stream: &str) -> v2::AppendRequest {
    let record = v2::AppendRecord {
        record_id: (rng.random_range(0..2) == 0).then(|| "no id".to_owned()),
        schema: Some(v2::SchemaInfo {
            format: rng.random_range(-1..6),
            name: "added".into(),
            id: None,
        }),
        ..v2::AppendRecord::default()
    };
    v2::AppendRequest {
        stream: stream.to_owned(),
        records: vec![record; rng.random_range(0..3)],
        expected_revision: Some(rng.random_range(-7..3)),
    }
}
