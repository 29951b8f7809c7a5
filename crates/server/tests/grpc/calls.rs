//! Tests the answers of the calls, message by message.

use gesta_core::{
    EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, HostPort, SetStreamMetadata,
    StreamId, StreamMetadata,
};
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::gossip::{ClusterInfo, member_info::VNodeState};
use gesta_grpc::messages::health::health_check_response::ServingStatus;
use gesta_grpc::messages::health::{HealthCheckRequest, HealthCheckResponse};
use gesta_grpc::messages::monitoring::{StatsReq, StatsResp};
use gesta_grpc::messages::operations::scavenge_resp::ScavengeResult;
use gesta_grpc::messages::operations::{
    ScavengeResp, SetNodePriorityReq, StartScavengeReq, StopScavengeReq, start_scavenge_req,
    stop_scavenge_req,
};
use gesta_grpc::messages::projections::statistics_req::options::Mode;
use gesta_grpc::messages::projections::{
    DisableReq, EnableReq, StatisticsReq, StatisticsResp, disable_req, enable_req, statistics_req,
};
use gesta_grpc::messages::server_features::SupportedMethods;
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::append_resp::Result as Outcome;
use gesta_grpc::messages::streams::read_req::options::uuid_option::Content as Form;
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, ControlOption, CountOption, ReadDirection, StreamOption, StreamOptions, UuidOption,
    all_options, stream_options::RevisionOption,
};
use gesta_grpc::messages::streams::read_req::{self};
use gesta_grpc::messages::streams::read_resp::Content as Answer;
use gesta_grpc::messages::streams::{AppendResp, ReadResp};
use gesta_memory::MemoryStore;
use gesta_server::Config;
use prost::Message;
use std::sync::Arc;

use crate::client::Client;
use crate::requests::{APPEND, READ, appending, bytes_of, following, identifier, read_of, reading};

fn contents(messages: Vec<ReadResp>) -> Vec<Answer> {
    let contents = messages.into_iter().map(|message| message.content);
    contents
        .map(|content| content.expect("a content"))
        .collect()
}

/// What happened: clients that ask for the last revision of a stream, and for the first that can be read, were told
/// neither. Goal: they are told the first one before the events if it is not the one that was asked for, and the last
/// one after them. Who does not ask gets events and `stream_not_found` alone: the client for Go ends its process at any
/// other message.
#[tokio::test]
async fn a_finite_read_tells_the_ends_of_a_stream_to_who_asks() {
    let store = Arc::new(MemoryStore::new());
    let client = Client::with(Config::default(), store.clone()).await;
    for _ in 0..5 {
        let ended = client.call(APPEND, &appending("cart-1", 10)).await;
        assert_eq!(ended.code, 0, "{}", ended.message());
    }
    let set = SetStreamMetadata {
        stream: StreamId::new("cart-1").unwrap(),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(r#"{"$tb":2}"#).unwrap(),
    };
    store.set_stream_metadata(set).await.expect("set");
    let asked =
        |stream: &str, from: RevisionOption, count: u64, compatibility: u32| read_req::Options {
            stream_option: Some(StreamOption::Stream(StreamOptions {
                stream_identifier: Some(identifier(stream)),
                revision_option: Some(from),
            })),
            count_option: Some(CountOption::Count(count)),
            control_option: Some(ControlOption { compatibility }),
            ..read_of(stream)
        };
    let start = || RevisionOption::Start(Empty {});
    let from = RevisionOption::Revision;
    for (options, wanted) in [
        (asked("cart-1", start(), 9, 0), "2 3 4"),
        (asked("cart-1", start(), 9, 1), "first 2, 2 3 4, last 4"),
        (asked("cart-1", from(1), 2, 1), "first 2, 2 3, last 4"),
        (asked("cart-1", from(2), 9, 1), "2 3 4, last 4"),
        (asked("cart-1", from(3), 0, 1), "last 4"),
        (asked("cart-1", from(7), 9, 0), ""),
        // An empty stretch of a stream that exists has no event.
        (asked("cart-1", from(7), 9, 1), "last 4"),
        (asked("cart-2", start(), 9, 0), "none cart-2"),
        (asked("cart-2", start(), 9, 1), "none cart-2"),
        (
            read_req::Options {
                read_direction: ReadDirection::Backwards.into(),
                ..asked("cart-1", RevisionOption::End(Empty {}), 9, 1)
            },
            "4 3 2, last 4",
        ),
    ] {
        let answers = contents(client.call(READ, &reading(options)).await.read());
        let mut shown = String::new();
        for answer in answers {
            shown += &match answer {
                Answer::Event(event) => format!("{} ", event.event.unwrap().stream_revision),
                Answer::FirstStreamPosition(first) => format!("first {first}, "),
                Answer::LastStreamPosition(last) => format!(", last {last}"),
                Answer::StreamNotFound(missing) => {
                    let name = missing.stream_identifier.unwrap().stream_name;
                    format!("none {}", String::from_utf8_lossy(&name))
                }
                other => panic!("{other:?}"),
            };
        }
        let shown = shown.replace(" ,", ",");
        assert_eq!(shown.trim().trim_start_matches(", "), wanted);
    }
}

/// Goal: ids come back in the form that the client asks for.
#[tokio::test]
async fn ids_have_the_form_that_the_client_asks_for() {
    let client = Client::start().await;
    client.call(APPEND, &appending("cart-1", 10)).await;
    for (asked, form) in [
        (Form::Structured(Empty {}), UuidForm::Structured),
        (Form::String(Empty {}), UuidForm::Text),
    ] {
        let options = read_req::Options {
            uuid_option: Some(UuidOption {
                content: Some(asked),
            }),
            ..read_of("cart-1")
        };
        let answers = contents(client.call(READ, &reading(options)).await.read());
        let [Answer::Event(event)] = answers.as_slice() else {
            panic!("{answers:?}");
        };
        let id = event.event.as_ref().expect("the event").id.as_ref();
        assert_eq!(ids::read_uuid("id", id).expect("an id").1, form);
    }
}

/// Goal: two clients take the version apart as three numbers, and end if it is anything else.
#[tokio::test]
async fn the_version_is_three_numbers() {
    let client = Client::start().await;
    let path = "/event_store.client.server_features.ServerFeatures/GetSupportedMethods";
    let [features]: [SupportedMethods; 1] = client
        .call(path, &[Empty {}])
        .await
        .read()
        .try_into()
        .expect("one answer");
    let version = features.event_store_server_version;
    let numbers: Vec<u32> = version
        .split('.')
        .map(|n| n.parse().expect(&version))
        .collect();
    assert_eq!(numbers.len(), 3);
    for method in features.methods {
        let text = format!("{}{}", method.service_name, method.method_name);
        assert!(!text.contains('/') && text == text.to_lowercase(), "{text}");
    }
}

/// Goal: the one member that is told of is the leader, at the address that the client called.
#[tokio::test]
async fn gossip_tells_of_this_server_at_the_address_that_was_called() {
    let client = Client::start().await;
    let [info]: [ClusterInfo; 1] = client
        .call("/event_store.client.gossip.Gossip/Read", &[Empty {}])
        .await
        .read()
        .try_into()
        .expect("one answer");
    let [member] = info.members.as_slice() else {
        panic!("{info:?}");
    };
    assert_eq!(member.state, i32::from(VNodeState::Leader));
    assert!(member.is_alive);
    let at = member.http_end_point.as_ref().expect("an address");
    let address = client.server.local_addr();
    assert_eq!(at.address, address.ip().to_string());
    assert_eq!(at.port, u32::from(address.port()));
}

/// What happened: a server could not be told at which host and port clients reach it, so behind mapped ports it sent
/// them nowhere. Goal: it tells what it was told, and may be called by that name; another name is still refused.
#[tokio::test]
async fn gossip_tells_of_the_address_that_is_advertised() {
    let config = Config {
        advertise: Some(HostPort::parse("db.example.org:7000").unwrap()),
        ..Config::default()
    };
    let client = Client::with(config, Arc::new(MemoryStore::new())).await;
    let path = "/event_store.client.gossip.Gossip/Read";
    let info = client.call(path, &[Empty {}]).await.read::<ClusterInfo>();
    let at = info[0].members[0]
        .http_end_point
        .as_ref()
        .expect("an address");
    assert_eq!((at.address.as_str(), at.port), ("db.example.org", 7_000));
}

/// Goal: the health service of gRPC answers for the server, for its services by name, and for no other; who follows it
/// is told at once, and that the server stops.
#[tokio::test]
async fn the_health_service_answers() {
    let client = Client::start().await;
    let ask = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let path = |method: &str| format!("/grpc.health.v1.Health/{method}");
    for service in ["", "event_store.client.streams.Streams"] {
        let ended = client.call(&path("Check"), &[ask(service)]).await;
        assert_eq!(
            ended.read::<HealthCheckResponse>()[0].status(),
            ServingStatus::Serving
        );
    }
    let unknown = client.call(&path("Check"), &[ask("none")]).await;
    assert_eq!(unknown.code, 5, "{}", unknown.message());
    let mut watches = Vec::new();
    for (service, status) in [
        ("", ServingStatus::Serving),
        ("none", ServingStatus::ServiceUnknown),
    ] {
        let mut open = client.open(&path("Watch"), &[]).await;
        open.send(&ask(service)).await;
        open.close();
        let first = open.next().await.expect("a status");
        let first = HealthCheckResponse::decode(first).expect("a status");
        assert_eq!(first.status(), status);
        watches.push(open);
    }
    let stopping = tokio::spawn({
        let server = client.server.clone();
        async move { server.shutdown().await }
    });
    for open in watches {
        assert_eq!(open.end().await.code, 14);
    }
    stopping.await.expect("stops");
}

/// Goal: clients learn which compression the server takes, which is none, with every answer and every refusal.
#[tokio::test]
async fn answers_say_that_messages_are_not_compressed() {
    let client = Client::start().await;
    let mut compressed = bytes_of(&appending("cart-1", 1)).to_vec();
    compressed[0] = 1;
    let refused = client.call_bytes(APPEND, &[], compressed.into()).await;
    assert_eq!(refused.code, 12, "{}", refused.message());
    assert_eq!(refused.trailers["grpc-accept-encoding"], "identity");
}

/// What happened: programs switch on the projections of the system when they start, and ended when that was not served.
/// Goal: three of them run, which are virtual streams here; of all five it is told whether they run and why not, and
/// whoever wants what is not so is told what to do.
#[tokio::test]
async fn the_projections_of_the_system_are_told_of() {
    let client = Client::start().await;
    let path = |method: &str| format!("/event_store.client.projections.Projections/{method}");
    let statistics = |mode: Mode| StatisticsReq {
        options: Some(statistics_req::Options { mode: Some(mode) }),
    };
    for (mode, count) in [
        (Mode::All(Empty {}), 5),
        (Mode::Continuous(Empty {}), 5),
        (Mode::Transient(Empty {}), 0),
        (Mode::OneTime(Empty {}), 0),
        (Mode::Name("$streams".to_owned()), 1),
    ] {
        let told = client.call(&path("Statistics"), &[statistics(mode)]).await;
        assert_eq!(told.read::<StatisticsResp>().len(), count);
    }
    let all = client
        .call(&path("Statistics"), &[statistics(Mode::All(Empty {}))])
        .await;
    for told in all.read::<StatisticsResp>() {
        let details = told.details.expect("details");
        let runs = ["$by_category", "$by_event_type", "$streams"].contains(&details.name.as_str());
        assert_eq!(details.status, if runs { "Running" } else { "Stopped" });
        assert_eq!(details.state_reason.is_empty(), runs, "{details:?}");
        let enable = EnableReq {
            options: Some(enable_req::Options {
                name: details.name.clone(),
            }),
        };
        let disable = DisableReq {
            options: Some(disable_req::Options {
                name: details.name,
                write_checkpoint: true,
            }),
        };
        let (enabled, disabled) = (
            client.call(&path("Enable"), &[enable]).await,
            client.call(&path("Disable"), &[disable]).await,
        );
        assert_eq!(
            (enabled.code, disabled.code),
            if runs { (0, 9) } else { (9, 0) }
        );
    }
    let unknown = EnableReq {
        options: Some(enable_req::Options {
            name: "mine".to_owned(),
        }),
    };
    let ended = client.call(&path("Enable"), &[unknown]).await;
    assert_eq!(ended.code, 5, "{}", ended.message());
}

/// Goal: what the answer to an append tells is what a read finds.
#[tokio::test]
async fn an_append_is_answered_with_what_a_read_finds() {
    let client = Client::start().await;
    client.call(APPEND, &appending("cart-1", 10)).await;
    let [answer]: [AppendResp; 1] = client
        .call(APPEND, &appending("cart-1", 10))
        .await
        .read()
        .try_into()
        .expect("one answer");
    let Some(Outcome::Success(success)) = answer.result else {
        panic!("{answer:?}");
    };
    let all = read_req::Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::End(Empty {})),
        })),
        read_direction: ReadDirection::Backwards.into(),
        count_option: Some(CountOption::Count(1)),
        ..read_of("cart-1")
    };
    let answers = contents(client.call(READ, &reading(all)).await.read());
    let [Answer::Event(event)] = answers.as_slice() else {
        panic!("{answers:?}");
    };
    let event = event.event.as_ref().expect("the event");
    assert_eq!(event.stream_revision, 1);
    let told = format!("{success:?}");
    assert!(told.contains("CurrentRevision(1)"), "{told}");
    assert!(
        told.contains(&format!("commit_position: {}", event.commit_position)),
        "{told}"
    );
}

/// Goal: a subscription confirms first, delivers what is stored, says that it has caught up, and goes on live.
#[tokio::test]
async fn a_subscription_keeps_the_order_of_its_messages() {
    let client = Client::start().await;
    client.call(APPEND, &appending("cart-1", 10)).await;
    let mut open = client.open(READ, &[]).await;
    let [request] = reading(following("cart-1"));
    open.send(&request).await;
    open.close();
    let mut kinds = Vec::new();
    let mut next = async |open: &mut crate::connection::Open| {
        let message = open.next().await.expect("a message");
        let content = ReadResp::decode(message).expect("a message").content;
        kinds.push(match content.expect("a content") {
            Answer::Confirmation(_) => "confirmation",
            Answer::Event(_) => "event",
            Answer::CaughtUp(caught_up) => {
                assert_eq!(caught_up.stream_revision, Some(0));
                "caught up"
            }
            other => panic!("{other:?}"),
        });
    };
    for _ in 0..3 {
        next(&mut open).await;
    }
    client.call(APPEND, &appending("cart-1", 10)).await;
    next(&mut open).await;
    assert_eq!(kinds, ["confirmation", "event", "caught up", "event"]);
}

/// Goal: the deadline of a call ends it, by the server's own clock.
#[tokio::test]
async fn a_deadline_ends_a_call() {
    let client = Client::start().await;
    let bytes = gesta_grpc::frame::framed(&reading(following("cart-1"))[0]);
    let ended = client
        .call_bytes(READ, &[("grpc-timeout", "50m")], bytes)
        .await;
    assert_eq!(ended.code, 4, "{}", ended.message());
    // A call whose messages do not come ends too.
    let open = client.open(APPEND, &[("grpc-timeout", "50m")]).await;
    assert_eq!(open.end().await.code, 4);
}

/// Goal: a store with several logs has no one order; what needs it is refused with the reason, all else works.
#[tokio::test]
async fn all_events_of_several_logs_are_refused() {
    let store = Arc::new(MemoryStore::with_config(gesta_memory::Config {
        logs: 2,
        ..gesta_memory::Config::default()
    }));
    let event = EventData::json(EventType::new("added").unwrap(), "{}");
    store
        .append_to("cart-1", ExpectedRevision::Any, vec![event])
        .await
        .expect("stored");
    let client = Client::with(Config::default(), store).await;
    let all = |options| read_req::Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::Start(Empty {})),
        })),
        ..options
    };
    for options in [all(read_of("x")), all(following("x"))] {
        let ended = client.call(READ, &reading(options)).await;
        assert_eq!(ended.code, 9);
        assert!(ended.message().contains("2 logs"), "{}", ended.message());
    }
    let answers = client.call(READ, &reading(read_of("cart-1"))).await;
    assert_eq!(answers.read::<ReadResp>().len(), 1);
    // One event needs no order: the Python client reads the newest to try a connection that it has made anew.
    let newest = read_req::Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::End(Empty {})),
        })),
        read_direction: 1,
        count_option: Some(CountOption::Count(1)),
        ..read_of("x")
    };
    let answers = client.call(READ, &reading(newest)).await;
    assert_eq!(answers.read::<ReadResp>().len(), 1);
}

/// Goal: calls that are not served say so, and name themselves and what to use instead.
#[tokio::test]
async fn calls_that_are_not_served_are_unimplemented() {
    let client = Client::start().await;
    for (path, instead) in [
        (
            "/event_store.client.projections.Projections/Create",
            "a subscription",
        ),
        (
            "/event_store.client.operations.Operations/Shutdown",
            "SIGTERM",
        ),
        ("/event_store.client.streams.Streams/None", ""),
        ("/none", ""),
    ] {
        let ended = client.call(path, &[Empty {}]).await;
        assert_eq!(ended.code, 12);
        assert!(ended.message().contains(path), "{}", ended.message());
        assert!(ended.message().contains(instead), "{}", ended.message());
    }
}

/// Goal: what operators ask for is answered as far as it is Gesta's to do.
#[tokio::test]
async fn operators_get_sensible_answers() {
    let client = Client::start().await;
    let path = |method: &str| format!("/event_store.client.operations.Operations/{method}");
    let started = client.call(&path("StartScavenge"), &[Empty {}]).await;
    let started = started.read::<ScavengeResp>().remove(0);
    assert_eq!(started.scavenge_result(), ScavengeResult::Started);
    uuid::Uuid::parse_str(&started.scavenge_id).expect("an id");
    let stop = |id: &str| StopScavengeReq {
        options: Some(stop_scavenge_req::Options {
            scavenge_id: id.to_owned(),
        }),
    };
    let stopped = client
        .call(&path("StopScavenge"), &[stop(&started.scavenge_id)])
        .await;
    let told = stopped.read::<ScavengeResp>().remove(0);
    assert_eq!(told.scavenge_result(), ScavengeResult::Stopped);
    assert_eq!(told.scavenge_id, started.scavenge_id);
    let stopped = client.call(&path("StopScavenge"), &[stop("other")]).await;
    assert_eq!(stopped.code, 5, "{}", stopped.message());
    assert_eq!(stopped.trailers["exception"], "scavenge-not-found");
    assert_eq!(stopped.trailers["scavenge-id"], "other");
    let negative = StartScavengeReq {
        options: Some(start_scavenge_req::Options {
            thread_count: -1,
            start_from_chunk: 0,
        }),
    };
    let refused = client.call(&path("StartScavenge"), &[negative]).await;
    assert_eq!(refused.code, 3, "{}", refused.message());
    for method in [
        "MergeIndexes",
        "ResignNode",
        "RestartPersistentSubscriptions",
    ] {
        let done = client.call(&path(method), &[Empty {}]).await;
        assert_eq!(done.read::<Empty>().len(), 1, "{method}");
    }
    let priority = [SetNodePriorityReq { priority: 5 }];
    let done = client.call(&path("SetNodePriority"), &priority).await;
    assert_eq!(done.read::<Empty>().len(), 1);
}

/// Goal: figures come at once, and again after the time that was asked for.
#[tokio::test]
async fn figures_come_again_and_again() {
    let client = Client::start().await;
    let mut open = client
        .open("/event_store.client.monitoring.Monitoring/Stats", &[])
        .await;
    open.send(&StatsReq {
        use_metadata: false,
        refresh_time_period_in_ms: 1,
    })
    .await;
    open.close();
    for _ in 0..2 {
        let message = open.next().await.expect("figures");
        let figures = StatsResp::decode(message).expect("figures").stats;
        assert_eq!(figures["gesta-subscriptions"], "1");
    }
}
