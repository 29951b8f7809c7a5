//! Who may make which call, and what takes rights away.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use gesta_access::{Access, Accounts, AddUser, Config as AccessConfig, FirstUser, NewToken, Scope};
use gesta_core::{
    Clock, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter,
    SetStreamMetadata, StreamId, StreamMetadata, SystemClock, Timestamp,
};
use gesta_groups::{Create, GroupId, Settings, Source};
use gesta_grpc::frame;
use gesta_grpc::ids;
use gesta_grpc::messages::groups;
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::read_req;
use gesta_grpc::messages::streams::read_req::options::{AllOptions, StreamOption, all_options};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Registry};
use prost::Message;

use crate::calls::{APPEND, READ, appending, following, read_of, reading};
use crate::client::{Client, soon};

pub(crate) const GROUPS: &str =
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions";

struct World {
    client: Client,
    store: Arc<dyn EventStore>,
    accounts: Accounts,
}

fn basic(name: &str) -> String {
    let login = format!("{name}:password of {name}");
    format!("Basic {}", STANDARD.encode(login))
}

/// The time of the system, some microseconds later.
#[derive(Clone, Default)]
struct Later(Arc<AtomicI64>);

impl Clock for Later {
    fn now(&self) -> Timestamp {
        Timestamp(SystemClock.now().0 + self.0.load(Ordering::Relaxed))
    }
}

async fn world() -> World {
    world_at(Later::default()).await
}

async fn world_at(clock: Later) -> World {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    for (name, groups) in [
        ("root", &["$admins"][..]),
        ("ops", &["$ops"]),
        ("user", &[]),
        ("mate", &["team"]),
    ] {
        let add = AddUser {
            name: name.into(),
            password: format!("password of {name}"),
            groups: groups.iter().map(ToString::to_string).collect(),
            first: FirstUser::RefuseRights,
        };
        accounts.add_user(add).await.expect("added");
    }
    let config = AccessConfig {
        clock: Arc::new(clock),
        ..AccessConfig::default()
    };
    let access = Access::start(Arc::clone(&store), config);
    soon(access.loaded()).await;
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    let bound = gesta_server::bind(config).await.expect("a free port");
    let bound = bound.with_access(access);
    let handle = bound.serve(Arc::clone(&store), Registry::default());
    World {
        client: Client::to(handle).await,
        store,
        accounts,
    }
}

impl World {
    async fn seed(&self, stream: &str) {
        let event = EventData::json(EventType::new("T").expect("valid"), "1");
        let stored = self
            .store
            .append_to(stream, ExpectedRevision::Any, vec![event]);
        stored.await.expect("stored");
    }

    async fn set_metadata(&self, stream: &str, json: &'static str) {
        let request = SetStreamMetadata {
            stream: StreamId::new(stream).expect("valid"),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(json).expect("valid"),
        };
        self.store.set_stream_metadata(request).await.expect("set");
    }

    async fn token(&self, user: &str, scopes: &[Scope]) -> String {
        self.token_until(user, scopes, None).await
    }

    async fn token_until(
        &self,
        user: &str,
        scopes: &[Scope],
        expires: Option<Timestamp>,
    ) -> String {
        let token = NewToken {
            user: user.into(),
            label: String::new(),
            scopes: scopes.to_vec(),
            prefixes: Vec::new(),
            expires,
        };
        let text = self.accounts.create_token(token).await.expect("made");
        let header = format!("Bearer {text}");
        // It is known here once it has been read.
        let probe = || bytes_of(&appending("$x", 1));
        while self.call(APPEND, &header, probe()).await.0 == 16 {}
        header
    }

    /// The status of a call, and how many messages came.
    async fn call(&self, path: &str, authorization: &str, bytes: Bytes) -> (i32, usize) {
        // What has no end is ended by its deadline.
        let mut headers = vec![("grpc-timeout", "500m")];
        if !authorization.is_empty() {
            headers.push(("authorization", authorization));
        }
        let ended = self.client.call_bytes(path, &headers, bytes).await;
        (ended.code, ended.messages.len())
    }

    async fn group(&self, source: Source) {
        let create = Create {
            group: GroupId::new(source, "g").expect("valid"),
            settings: Settings::default(),
            filter: Filter::ALL,
        };
        let groups = self.client.server.groups();
        groups.create(create).await.expect("made");
    }
}

fn bytes_of<M: Message>(messages: &[M]) -> Bytes {
    let mut out = BytesMut::new();
    for message in messages {
        frame::write(&mut out, message);
    }
    out.freeze()
}

fn identifier(stream: &str) -> gesta_grpc::messages::shared::StreamIdentifier {
    ids::identifier(&StreamId::new(stream).expect("valid"))
}

pub(crate) fn consuming(stream: &str) -> Bytes {
    use groups::read_req::options::uuid_option::Content as Form;
    use groups::read_req::options::{StreamOption, UuidOption};
    bytes_of(&[groups::ReadReq {
        content: Some(groups::read_req::Content::Options(
            groups::read_req::Options {
                stream_option: Some(StreamOption::StreamIdentifier(identifier(stream))),
                group_name: "g".into(),
                buffer_size: 1,
                uuid_option: Some(UuidOption {
                    content: Some(Form::String(Empty {})),
                }),
            },
        )),
    }])
}

fn replaying(stream: &str) -> Bytes {
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

fn deleting(stream: &str) -> Bytes {
    use gesta_grpc::messages::streams::DeleteReq;
    use gesta_grpc::messages::streams::delete_req::Options;
    use gesta_grpc::messages::streams::delete_req::options::ExpectedStreamRevision;
    bytes_of(&[DeleteReq {
        options: Some(Options {
            stream_identifier: Some(identifier(stream)),
            // It never is, so nothing is deleted.
            expected_stream_revision: Some(ExpectedStreamRevision::Revision(u64::MAX)),
        }),
    }])
}

fn all() -> Bytes {
    bytes_of(&reading(read_req::Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::Start(Empty {})),
        })),
        ..read_of("x")
    }))
}

/// Goal: each kind of caller, each kind of call. 16: who are you; 7: you may not; 9: the delete is not as expected, so it
/// would have been allowed; 4: it went on until its deadline.
#[tokio::test]
async fn every_call_with_every_caller() {
    let world = world().await;
    for name in ["open", "team", "$x"] {
        world.seed(name).await;
    }
    let acl = r#"{"$acl":{"$r":"team","$w":["team"],"$mr":"team","$d":"team","$mw":"team"}}"#;
    world.set_metadata("team", acl).await;
    for name in ["open", "team"] {
        let stream = StreamId::new(name).expect("valid");
        world.group(Source::Stream(stream)).await;
    }
    let read = world.token("user", &[Scope::Read]).await;
    let append = world.token("user", &[Scope::Append]).await;
    let callers = [
        ("anonymous", String::new()),
        ("wrong", format!("Basic {}", STANDARD.encode("root:x"))),
        ("user", basic("user")),
        ("in the group", basic("mate")),
        ("ops", basic("ops")),
        ("admin", basic("root")),
        ("token read", read),
        ("token append", append),
    ];
    let streams = "/event_store.client.streams.Streams";
    let subscribing = |stream| bytes_of(&reading(following(stream)));
    let read_one = |stream| bytes_of(&reading(read_of(stream)));
    let append_one = |stream| bytes_of(&appending(stream, 5));
    let listing = bytes_of(&[groups::ListReq {
        options: Some(groups::list_req::Options {
            list_option: Some(groups::list_req::options::ListOption::ListAllSubscriptions(
                Empty {},
            )),
        }),
    }]);
    let nothing = bytes_of(&[Empty {}]);
    let rows = [
        (
            APPEND.to_owned(),
            append_one("open"),
            [16, 16, 0, 0, 0, 0, 7, 0],
        ),
        (
            APPEND.to_owned(),
            append_one("team"),
            [16, 16, 7, 0, 7, 0, 7, 7],
        ),
        (
            APPEND.to_owned(),
            append_one("$x"),
            [16, 16, 7, 7, 7, 0, 7, 7],
        ),
        (
            APPEND.to_owned(),
            append_one("$user-user"),
            [16, 16, 7, 7, 7, 3, 7, 7],
        ),
        (
            READ.to_owned(),
            read_one("open"),
            [16, 16, 0, 0, 0, 0, 0, 7],
        ),
        (
            READ.to_owned(),
            read_one("team"),
            [16, 16, 7, 0, 7, 0, 7, 7],
        ),
        (
            READ.to_owned(),
            read_one("$$team"),
            [16, 16, 7, 0, 7, 0, 7, 7],
        ),
        (
            READ.to_owned(),
            read_one("$user-user"),
            [16, 16, 7, 7, 7, 0, 7, 7],
        ),
        (READ.to_owned(), all(), [16, 16, 0, 0, 0, 0, 0, 7]),
        (
            READ.to_owned(),
            subscribing("open"),
            [16, 16, 4, 4, 4, 4, 4, 7],
        ),
        (
            READ.to_owned(),
            subscribing("team"),
            [16, 16, 7, 4, 7, 4, 7, 7],
        ),
        (
            format!("{streams}/Delete"),
            deleting("open"),
            [16, 16, 9, 9, 9, 9, 7, 7],
        ),
        (
            format!("{streams}/Delete"),
            deleting("team"),
            [16, 16, 7, 9, 7, 9, 7, 7],
        ),
        (
            format!("{GROUPS}/Read"),
            consuming("open"),
            [16, 16, 0, 0, 0, 0, 0, 7],
        ),
        (
            format!("{GROUPS}/Read"),
            consuming("team"),
            [16, 16, 7, 0, 7, 0, 7, 7],
        ),
        (
            format!("{GROUPS}/ReplayParked"),
            replaying("open"),
            [16, 16, 7, 7, 0, 0, 7, 7],
        ),
        (
            format!("{GROUPS}/ReplayParked"),
            replaying("team"),
            [16, 16, 7, 7, 7, 0, 7, 7],
        ),
        (
            format!("{GROUPS}/List"),
            listing,
            [16, 16, 7, 7, 0, 0, 7, 7],
        ),
        (
            format!("{GROUPS}/RestartSubsystem"),
            nothing.clone(),
            [16, 16, 7, 7, 0, 0, 7, 7],
        ),
        (
            "/event_store.client.operations.Operations/RestartPersistentSubscriptions".to_owned(),
            nothing.clone(),
            [16, 16, 7, 7, 0, 0, 7, 7],
        ),
        (
            "/event_store.client.server_features.ServerFeatures/GetSupportedMethods".to_owned(),
            nothing.clone(),
            [0; 8],
        ),
        (
            "/event_store.client.gossip.Gossip/Read".to_owned(),
            nothing,
            [0; 8],
        ),
    ];
    for (path, bytes, expected) in rows {
        for ((name, authorization), expected) in callers.iter().zip(expected) {
            let (code, _) = world.call(&path, authorization, bytes.clone()).await;
            assert_eq!(code, expected, "{name}: {path} {bytes:?}");
        }
    }
    // All events leave out what may not be read.
    let (_, seen) = world.call(READ, &basic("user"), all()).await;
    let (_, whole) = world.call(READ, &basic("root"), all()).await;
    assert!(0 < seen && seen < whole, "{seen} of {whole}");
}

/// Goal: rights that are taken away end what is running: subscriptions, and consumers of groups.
#[tokio::test]
async fn rights_that_are_taken_away_end_what_runs() {
    let world = world().await;
    world.seed("team").await;
    let of_team = r#"{"$acl":{"$r":"team"}}"#;
    world.set_metadata("team", of_team).await;
    let stream = StreamId::new("team").expect("valid");
    world.group(Source::Stream(stream)).await;
    let mate = basic("mate");
    let headers = [("authorization", mate.as_str())];
    let mut subscribed = world.client.open(READ, &headers).await;
    subscribed
        .send_bytes(bytes_of(&reading(following("team"))))
        .await;
    subscribed.close();
    let path = format!("{GROUPS}/Read");
    let mut consumer = world.client.open(&path, &headers).await;
    consumer.send_bytes(consuming("team")).await;
    // Both have the confirmation and the event.
    for open in [&mut subscribed, &mut consumer] {
        for _ in 0..2 {
            open.next().await.expect("a message");
        }
    }
    world
        .accounts
        .set_groups("mate", vec!["others".into()])
        .await
        .expect("changed");
    for open in [subscribed, consumer] {
        let ended = open.end().await;
        assert_eq!(ended.code, 7, "{}", ended.message());
        assert_eq!(ended.trailers["exception"], "access-denied");
    }
}

/// Goal: a token that expires ends what is running under it: subscriptions, and consumers of groups.
#[tokio::test]
async fn a_token_that_expires_ends_what_runs() {
    const HOUR: i64 = 3_600_000_000;
    let clock = Later::default();
    let world = world_at(clock.clone()).await;
    world.seed("team").await;
    let stream = StreamId::new("team").expect("valid");
    world.group(Source::Stream(stream)).await;
    let expires = Timestamp(SystemClock.now().0 + HOUR);
    let token = world
        .token_until("mate", &[Scope::Read], Some(expires))
        .await;
    let headers = [("authorization", token.as_str())];
    let mut subscribed = world.client.open(READ, &headers).await;
    subscribed
        .send_bytes(bytes_of(&reading(following("team"))))
        .await;
    subscribed.close();
    let path = format!("{GROUPS}/Read");
    let mut consumer = world.client.open(&path, &headers).await;
    consumer.send_bytes(consuming("team")).await;
    for open in [&mut subscribed, &mut consumer] {
        for _ in 0..2 {
            open.next().await.expect("a message");
        }
    }
    clock.0.store(HOUR, Ordering::Relaxed);
    for open in [subscribed, consumer] {
        let ended = open.end().await;
        assert_eq!(ended.code, 16, "{}", ended.message());
    }
}
