//! Tests the refusals of groups that cannot be as a caller wants them, and the deliveries of groups on all events.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::{
    DeleteKind, DeleteStream, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision,
    StreamId,
};
use gesta_grpc::messages::groups::create_req::all_options::filter_options::{
    Expression, Filter, Window,
};
use gesta_grpc::messages::groups::create_req::all_options::{
    AllOption, FilterOption, FilterOptions,
};
use gesta_grpc::messages::groups::create_req::options::StreamOption;
use gesta_grpc::messages::groups::create_req::settings::MessageTimeout;
use gesta_grpc::messages::groups::create_req::stream_options::RevisionOption;
use gesta_grpc::messages::groups::create_req::{
    AllOptions, Options, Position, Settings, StreamOptions,
};
use gesta_grpc::messages::groups::read_resp::Content;
use gesta_grpc::messages::groups::{
    self, CreateReq, GetInfoReq, GetInfoResp, ReadReq, ReadResp, ReplayParkedReq, get_info_req,
    read_req, replay_parked_req,
};
use gesta_grpc::messages::shared::Empty;
use gesta_memory::MemoryStore;
use gesta_server::Config;
use prost::Message;

use crate::client::Client;
use crate::connection::{Open, soon};
use crate::requests::{APPEND, GROUPS, appending, bytes_of, identifier};

pub(crate) fn settings() -> Settings {
    Settings {
        max_retry_count: 10,
        min_checkpoint_count: 10,
        max_checkpoint_count: 1_000,
        live_buffer_size: 500,
        read_batch_size: 20,
        history_buffer_size: 500,
        consumer_strategy: "RoundRobin".into(),
        ..Settings::default()
    }
}

fn of_stream(settings: Settings) -> Options {
    Options {
        stream_option: Some(StreamOption::Stream(StreamOptions {
            stream_identifier: Some(identifier("cart-1")),
            revision_option: Some(RevisionOption::Start(Empty {})),
        })),
        group_name: "mail".to_owned(),
        settings: Some(settings),
        ..Options::default()
    }
}

fn of_all(start: AllOption, filter: Option<FilterOption>) -> Options {
    Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(start),
            filter_option: filter,
        })),
        ..of_stream(settings())
    }
}

fn create(options: Options) -> Bytes {
    bytes_of(&[CreateReq {
        options: Some(options),
    }])
}

/// A call that cannot be carried out: the method, what the group is on, what is sent, and what the reason must name.
type Case = (&'static str, &'static str, Bytes, &'static str);

/// Makes requests with settings that break a rule, each in another way.
fn wrong_settings() -> Vec<Case> {
    let small = Settings {
        history_buffer_size: 20,
        ..settings()
    };
    let unknown = Settings {
        consumer_strategy: "Fastest".into(),
        ..settings()
    };
    let negative = Settings {
        max_retry_count: -1,
        ..settings()
    };
    let wrong = [
        (small, "history_buffer_size"),
        (unknown, "\"Fastest\""),
        (negative, "-1"),
    ];
    let cases = wrong.into_iter().flat_map(|(settings, reason)| {
        let asked = create(of_stream(settings));
        ["Create", "Update"].map(|method| (method, "cart-1", asked.clone(), reason))
    });
    cases.collect()
}

/// Makes requests with beginnings, filters and ends that cannot be.
fn wrong_places() -> Vec<Case> {
    let stop_at = ReplayParkedReq {
        options: Some(replay_parked_req::Options {
            group_name: "mail".to_owned(),
            stream_option: Some(replay_parked_req::options::StreamOption::StreamIdentifier(
                identifier("cart-1"),
            )),
            stop_at_option: Some(replay_parked_req::options::StopAtOption::StopAt(-1)),
        }),
    };
    let beyond = AllOption::Position(Position {
        commit_position: 1_000,
        prepare_position: 1_000,
    });
    let pattern = by_type(Expression {
        regex: "(".to_owned(),
        prefix: Vec::new(),
    });
    let start = AllOption::Start(Empty {});
    vec![
        ("ReplayParked", "cart-1", bytes_of(&[stop_at]), "-1"),
        ("Create", "$all", create(of_all(beyond, None)), "1000"),
        (
            "Create",
            "$all",
            create(of_all(start, Some(pattern))),
            "\"(\"",
        ),
    ]
}

fn by_type(expression: Expression) -> FilterOption {
    FilterOption::Filter(FilterOptions {
        filter: Some(Filter::EventType(expression)),
        window: Some(Window::Count(Empty {})),
        checkpoint_interval_multiplier: 1,
    })
}

/// Settings that break a rule had no trailers, so that clients raised an error that says nothing. Goal: creating,
/// changing and replaying that cannot be carried out is a failure of the group, by its name and with the reason.
#[tokio::test]
async fn what_a_group_cannot_be_is_a_failure_of_the_group() {
    let client = Client::start().await;
    let path = format!("{GROUPS}/Create");
    let made = client.call_bytes(&path, &[], create(of_stream(settings())));
    assert_eq!(made.await.code, 0);
    for (method, source, asked, reason) in wrong_settings().into_iter().chain(wrong_places()) {
        let path = format!("{GROUPS}/{method}");
        let ended = client.call_bytes(&path, &[], asked).await;
        assert_eq!(ended.code, 3, "{method} {reason}: {}", ended.message());
        assert!(ended.message().contains(reason), "{}", ended.message());
        let trailer = |name| {
            ended
                .trailers
                .get(name)
                .map(|value| value.to_str().unwrap())
        };
        let exception = "persistent-subscription-failed";
        assert_eq!(trailer("exception"), Some(exception), "{reason}");
        assert_eq!(trailer("stream-name"), Some(source));
        assert_eq!(trailer("group-name"), Some("mail"));
        assert!(trailer("reason").unwrap().contains(reason));
    }
}

/// Returns what the server tells about the group `mail` of the stream `cart-1`.
async fn info_of(client: &Client, group: &str) -> gesta_grpc::messages::groups::SubscriptionInfo {
    let asked = GetInfoReq {
        options: Some(get_info_req::Options {
            group_name: group.to_owned(),
            stream_option: Some(get_info_req::options::StreamOption::StreamIdentifier(
                identifier("cart-1"),
            )),
        }),
    };
    let ended = client.call(&format!("{GROUPS}/GetInfo"), &[asked]).await;
    let info = ended.read::<GetInfoResp>().remove(0).subscription_info;
    info.expect("a group")
}

/// What happened: clients that write where a group begins only into the field that it was once written in could make no
/// group from the end, and none with their defaults. Goal: that field counts where no other says it, and its special
/// numbers mean what they always meant.
#[tokio::test]
async fn fields_and_numbers_of_older_clients_mean_what_they_meant() {
    let client = Client::start().await;
    client.call(APPEND, &appending("cart-1", 5)).await;
    let old = |revision| Settings {
        revision,
        ..settings()
    };
    let without = |options: Options, is_in_group: bool| Options {
        stream_option: is_in_group.then(|| {
            StreamOption::Stream(StreamOptions {
                stream_identifier: Some(identifier("cart-1")),
                revision_option: None,
            })
        }),
        stream_identifier: (!is_in_group).then(|| identifier("cart-1")),
        ..options
    };
    let at = |revision| Options {
        stream_option: Some(StreamOption::Stream(StreamOptions {
            stream_identifier: Some(identifier("cart-1")),
            revision_option: Some(RevisionOption::Revision(revision)),
        })),
        ..of_stream(settings())
    };
    let cases = [
        (without(of_stream(old(0)), true), "0"),
        (without(of_stream(old(u64::MAX)), true), "-1"),
        (without(of_stream(old(1)), true), "1"),
        (without(of_stream(old(0)), false), "0"),
        (without(of_stream(old(u64::MAX)), false), "-1"),
        (at(u64::MAX), "-1"),
        (at(0), "0"),
        // Where it is said twice, the newer field counts.
        (of_stream(old(u64::MAX)), "0"),
    ];
    for (number, (options, told)) in cases.into_iter().enumerate() {
        let name = format!("group-{number}");
        for method in ["Create", "Update"] {
            let asked = Options {
                group_name: name.clone(),
                ..options.clone()
            };
            let path = format!("{GROUPS}/{method}");
            let done = client.call_bytes(&path, &[], create(asked)).await;
            assert_eq!(done.code, 0, "{method} {number}: {}", done.message());
            assert_eq!(info_of(&client, &name).await.start_from, told, "{number}");
        }
    }
    // A greatest count below the least one, and the longest time that older clients can say.
    let odd = Settings {
        min_checkpoint_count: 10,
        max_checkpoint_count: 1,
        message_timeout: Some(MessageTimeout::MessageTimeoutTicks(i64::MAX)),
        ..settings()
    };
    let path = format!("{GROUPS}/Create");
    let made = client.call_bytes(&path, &[], create(of_stream(odd))).await;
    assert_eq!(made.code, 0, "{}", made.message());
    let info = info_of(&client, "mail").await;
    assert_eq!(
        (info.min_check_point_count, info.max_check_point_count),
        (10, 10)
    );
    assert_eq!(info.message_timeout_milliseconds, i32::MAX);
    // The end of all events has such a number too.
    let end = AllOption::Position(Position {
        commit_position: u64::MAX,
        prepare_position: u64::MAX,
    });
    let made = client
        .call_bytes(&path, &[], create(of_all(end, None)))
        .await;
    assert_eq!(made.code, 0, "{}", made.message());
    // Who consumes is told: the address at least, where nobody says who they are.
    let source = read_req::options::StreamOption::StreamIdentifier(identifier("cart-1"));
    let _open = consume(&client, source).await;
    let consumer = info_of(&client, "mail").await.connections.remove(0);
    assert_eq!(
        (consumer.from.as_str(), consumer.username.as_str()),
        ("127.0.0.1", "anonymous")
    );
}

/// Makes a consumer of the group `mail`, and waits until it is told that it has joined.
async fn consume(client: &Client, source: read_req::options::StreamOption) -> Open {
    let mut open = client.open(&format!("{GROUPS}/Read"), &[]).await;
    let options = read_req::Options {
        stream_option: Some(source),
        group_name: "mail".to_owned(),
        buffer_size: 10,
        uuid_option: Some(read_req::options::UuidOption {
            content: Some(read_req::options::uuid_option::Content::String(Empty {})),
        }),
    };
    let content = Some(read_req::Content::Options(options));
    open.send(&ReadReq { content }).await;
    open.next().await.expect("the confirmation");
    open
}

/// Goal: the times that consumers take are told by all the names that clients know.
#[tokio::test]
async fn times_are_told_by_the_names_that_clients_know() {
    let client = Client::start().await;
    let measured = Settings {
        extra_statistics: true,
        ..settings()
    };
    let path = format!("{GROUPS}/Create");
    let made = client.call_bytes(&path, &[], create(of_stream(measured)));
    assert_eq!(made.await.code, 0);
    client.call(APPEND, &appending("cart-1", 5)).await;
    let source = read_req::options::StreamOption::StreamIdentifier(identifier("cart-1"));
    let mut open = consume(&client, source).await;
    let message = ReadResp::decode(open.next().await.expect("a delivery")).expect("a message");
    let Some(Content::Event(found)) = message.content else {
        panic!("{message:?}");
    };
    let ids = found.event.and_then(|event| event.id).into_iter().collect();
    let ack = read_req::Content::Ack(read_req::Ack {
        ids,
        ..read_req::Ack::default()
    });
    open.send(&ReadReq { content: Some(ack) }).await;
    let told = soon(async {
        loop {
            let consumer = info_of(&client, "mail").await.connections.remove(0);
            if !consumer.observed_measurements.is_empty() {
                return consumer.observed_measurements;
            }
            tokio::task::yield_now().await;
        }
    });
    let names: Vec<String> = told.await.into_iter().map(|found| found.key).collect();
    let known = "Mean,Median,Fastest,Quintile 1,Quintile 2,Quintile 3,Quintile 4,Quintile 5,\
                 90%,95%,99%,99.5%,99.9%,Highest";
    assert_eq!(names.join(","), known);
}

/// Goal: the filter of a group on all events sees events as its consumers are shown them.
#[tokio::test]
async fn the_filter_of_a_group_sees_what_consumers_see() {
    let store = Arc::new(MemoryStore::new());
    let event = EventData::json(EventType::new("added").expect("valid"), "{}");
    let appended = store.append_to("cart-1", ExpectedRevision::Any, vec![event]);
    appended.await.expect("stored");
    let request = DeleteStream {
        stream: StreamId::new("cart-1").expect("valid"),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Tombstone,
    };
    store.delete_stream(request).await.expect("closed");
    let client = Client::with(Config::default(), store).await;
    let deleted = by_type(Expression {
        regex: String::new(),
        prefix: vec!["$streamDeleted".to_owned()],
    });
    let asked = create(of_all(AllOption::Start(Empty {}), Some(deleted)));
    let made = client
        .call_bytes(&format!("{GROUPS}/Create"), &[], asked)
        .await;
    assert_eq!(made.code, 0, "{}", made.message());
    let mut open = consume(&client, read_req::options::StreamOption::All(Empty {})).await;
    let message = ReadResp::decode(open.next().await.expect("a delivery")).expect("a message");
    let Some(Content::Event(groups::read_resp::ReadEvent {
        event: Some(event), ..
    })) = message.content
    else {
        panic!("{message:?}");
    };
    assert_eq!(event.metadata["type"], "$streamDeleted");
    assert_eq!(event.stream_identifier, Some(identifier("cart-1")));
}
