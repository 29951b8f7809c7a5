//! Tests who may make which call, and what takes rights away.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_access::{Access, Accounts, AddUser, Config as AccessConfig, FirstUser, NewToken, Scope};
use gesta_core::{
    Clock, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter,
    SetStreamMetadata, StreamId, StreamMetadata, SystemClock, Timestamp,
};
use gesta_groups::{Create, GroupId, Settings, Source};
use gesta_grpc::messages::groups::{
    GetInfoReq, GetInfoResp, ListReq, ListResp, get_info_req, list_req,
};
use gesta_grpc::messages::shared::Empty;
use gesta_kit::support::OffsetClock;
use gesta_memory::MemoryStore;
use gesta_server::{Config, Registry};

use crate::client::Client;
use crate::connection::soon;
use crate::requests::{
    APPEND, GROUPS, READ, appending, bytes_of, consuming, following, identifier, read_of, reading,
};
use rows::{OF_TEAM, all, append, rows, status};

pub(crate) mod rows;
mod table;

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) accounts: Accounts,
}

pub(crate) fn basic(name: &str) -> String {
    let login = format!("{name}:password of {name}");
    format!("Basic {}", STANDARD.encode(login))
}

pub(crate) async fn world() -> World {
    world_at(OffsetClock::default()).await
}

async fn world_at(clock: OffsetClock) -> World {
    world_over(Arc::new(MemoryStore::new()), clock).await
}

pub(crate) async fn world_over(store: Arc<dyn EventStore>, clock: OffsetClock) -> World {
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
            full_name: String::new(),
            first: FirstUser::RefuseRights,
        };
        accounts.add_user(add).await.expect("added");
    }
    let config = AccessConfig {
        clock: Arc::new(clock),
        // The news of the accounts does not grow old because this machine stands still for a while.
        uptime: || Duration::ZERO,
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

    pub(crate) async fn token(&self, user: &str, scopes: &[Scope], prefixes: &[&str]) -> String {
        self.authorized_by(NewToken {
            user: user.into(),
            label: String::new(),
            scopes: scopes.to_vec(),
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            expires: None,
        })
        .await
    }

    /// Makes a token, and returns the header of callers who hold it.
    async fn authorized_by(&self, token: NewToken) -> String {
        let text = self.accounts.create_token(token).await.expect("made");
        let header = format!("Bearer {text}");
        // It is known here once it has been read.
        let probe = || bytes_of(&appending("$x", 1));
        soon(async { while self.call(APPEND, &header, probe()).await.0 == 16 {} }).await;
        header
    }

    /// Makes a call, and returns its status and the number of its messages.
    pub(crate) async fn call(&self, path: &str, authorization: &str, bytes: Bytes) -> (i32, usize) {
        let mut headers = vec![("grpc-timeout", "60S")];
        if !authorization.is_empty() {
            headers.push(("authorization", authorization));
        }
        let ended = self.client.call_bytes(path, &headers, bytes).await;
        (ended.code, ended.messages.len())
    }

    pub(crate) async fn group(&self, source: Source) {
        let create = Create {
            group: GroupId::new(source, "g").expect("valid"),
            settings: Settings::default(),
            filter: Filter::ALL,
        };
        let groups = self.client.server.groups();
        groups.create(create).await.expect("made");
    }
}

/// What happened: whoever could read a stream was told as whom and from where its groups are consumed. Goal: only those
/// who may manage groups are told.
#[tokio::test]
async fn who_consumes_is_told_to_those_who_manage_groups() {
    let world = world().await;
    world.seed("open").await;
    let stream = StreamId::new("open").expect("valid");
    world.group(Source::Stream(stream)).await;
    let mate = basic("mate");
    let path = format!("{GROUPS}/Read");
    let mut consumer = world
        .client
        .open(&path, &[("authorization", mate.as_str())])
        .await;
    consumer.send_bytes(consuming("open")).await;
    consumer.next().await.expect("a message");
    let of_group = GetInfoReq {
        options: Some(get_info_req::Options {
            group_name: "g".to_owned(),
            stream_option: Some(get_info_req::options::StreamOption::StreamIdentifier(
                identifier("open"),
            )),
        }),
    };
    let of_stream = ListReq {
        options: Some(list_req::Options {
            list_option: Some(list_req::options::ListOption::ListForStream(
                list_req::StreamOption {
                    stream_option: Some(list_req::stream_option::StreamOption::Stream(identifier(
                        "open",
                    ))),
                },
            )),
        }),
    };
    let all = ListReq {
        options: Some(list_req::Options {
            list_option: Some(list_req::options::ListOption::ListAllSubscriptions(
                Empty {},
            )),
        }),
    };
    let observer = world.token("ops", &[Scope::Read], &[]).await;
    for (who, shown) in [
        (basic("user"), ("", "anonymous")),
        (observer, ("", "anonymous")),
        (basic("ops"), ("127.0.0.1", "mate")),
        (basic("root"), ("127.0.0.1", "mate")),
    ] {
        let headers = [("authorization", who.as_str())];
        let call = async |method: &str, request: Bytes| {
            let path = format!("{GROUPS}/{method}");
            world.client.call_bytes(&path, &headers, request).await
        };
        let told = call("GetInfo", bytes_of(std::slice::from_ref(&of_group))).await;
        let told = told.read::<GetInfoResp>().remove(0).subscription_info;
        let mut told = vec![told.expect("a group")];
        for list in [&of_stream, &all] {
            let listed = call("List", bytes_of(std::slice::from_ref(list))).await;
            // Not everybody may list all groups.
            if listed.code != 7 {
                told.extend(listed.read::<ListResp>().remove(0).subscriptions);
            }
        }
        assert!(told.len() > 1, "{who}");
        for info in told {
            let consumer = &info.connections[0];
            let found = (consumer.from.as_str(), consumer.username.as_str());
            assert_eq!(found, shown, "{who}");
        }
    }
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
    let clock = OffsetClock::default();
    let world = world_at(clock.clone()).await;
    world.seed("team").await;
    let stream = StreamId::new("team").expect("valid");
    world.group(Source::Stream(stream)).await;
    let expires = Timestamp(SystemClock.now().0 + HOUR);
    let token = NewToken {
        user: "mate".into(),
        label: String::new(),
        scopes: vec![Scope::Read, Scope::Consume],
        prefixes: Vec::new(),
        expires: Some(expires),
    };
    let token = world.authorized_by(token).await;
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
    clock.set(HOUR);
    for open in [subscribed, consumer] {
        let ended = open.end().await;
        assert_eq!(ended.code, 16, "{}", ended.message());
    }
}
