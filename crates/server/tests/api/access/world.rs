//! Starts a server over a store with accounts.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_access::{Access, Accounts, AddUser, Config as AccessConfig, FirstUser, NewToken, Scope};
use gesta_core::{
    EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter, SetStreamMetadata,
    StreamId, StreamMetadata,
};
use gesta_groups::{Create, GroupId, Settings, Source};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Registry};

use crate::client::{Raw, Server, config, soon};

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) accounts: Accounts,
    pub(crate) access: Access,
}

pub(crate) fn password_of(name: &str) -> String {
    format!("password of {name}")
}

pub(crate) fn basic(name: &str) -> String {
    format!(
        "Basic {}",
        STANDARD.encode(format!("{name}:{}", password_of(name)))
    )
}

pub(crate) async fn add(accounts: &Accounts, name: &str, groups: &[&str]) {
    let add = AddUser {
        name: name.into(),
        password: password_of(name),
        groups: groups.iter().map(ToString::to_string).collect(),
        full_name: String::new(),
        first: FirstUser::RefuseRights,
    };
    accounts.add_user(add).await.expect("added");
}

/// A configuration in which no time passes: the news of the accounts does not grow old because this machine stands
/// still for a while, and what a user has read or written stays outstanding.
pub(crate) fn access_config() -> AccessConfig {
    AccessConfig {
        uptime: || Duration::ZERO,
        ..AccessConfig::default()
    }
}

impl World {
    /// Starts a server over a store with an administrator, an operator, a user, and one of the group team.
    pub(crate) async fn new() -> Self {
        Self::new_with(access_config()).await
    }

    /// Starts the same server with other bounds.
    pub(crate) async fn new_with(of: AccessConfig) -> Self {
        let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
        let accounts = Accounts::of(Arc::clone(&store));
        for (name, groups) in [
            ("root", &["$admins"][..]),
            ("ops", &["$ops"]),
            ("user", &[]),
            ("mate", &["team"]),
        ] {
            add(&accounts, name, groups).await;
        }
        Self::over(store, accounts, config(), of).await
    }

    pub(crate) async fn over(
        store: Arc<dyn EventStore>,
        accounts: Accounts,
        config: Config,
        of: AccessConfig,
    ) -> Self {
        let access = Access::start(Arc::clone(&store), of);
        soon(access.loaded()).await;
        let bound = gesta_server::bind(config).await.expect("a free port");
        let bound = bound.with_access(access.clone());
        let server = Server::of(bound.serve(Arc::clone(&store), Registry::default()));
        Self {
            server,
            store,
            accounts,
            access,
        }
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
    pub(crate) async fn authorized_by(&self, token: NewToken) -> String {
        let text = self.accounts.create_token(token).await.expect("made");
        let header = format!("Bearer {text}");
        // It is known here once it has been read.
        soon(async {
            while self.status("GET", "/info", &header, "").await == 401 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        header
    }

    pub(crate) async fn say(
        &self,
        method: &str,
        target: &str,
        authorization: &str,
        body: &str,
    ) -> Raw {
        let address = self.server.handle.local_addr();
        Raw::call(address, (method, target), authorization, body).await
    }

    pub(crate) async fn status(
        &self,
        method: &str,
        target: &str,
        authorization: &str,
        body: &str,
    ) -> u16 {
        let raw = self.say(method, target, authorization, body);
        raw.await.status()
    }

    /// Waits until a read has this status, because news of rights take a moment.
    pub(crate) async fn until(&self, target: &str, authorization: &str, status: u16) {
        soon(async {
            while self.status("GET", target, authorization, "").await != status {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Makes a consumer group.
    pub(crate) async fn group(&self, source: &str, name: &str) {
        let source = match source {
            "$all" => Source::All,
            stream => Source::Stream(StreamId::new(stream).expect("valid")),
        };
        let create = Create {
            group: GroupId::new(source, name).expect("valid"),
            settings: Settings::default(),
            filter: Filter::ALL,
        };
        let groups = self.server.handle.groups();
        groups.create(create).await.expect("made");
    }

    pub(crate) async fn seed(&self, name: &str) {
        let event = EventData::json(EventType::new("T").expect("valid"), "1");
        self.store
            .append_to(name, ExpectedRevision::Any, vec![event])
            .await
            .expect("stored");
    }

    pub(crate) async fn set_metadata(&self, name: &str, json: &str) {
        let request = SetStreamMetadata {
            stream: StreamId::new(name).expect("valid"),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(json.to_owned()).expect("valid"),
        };
        self.store.set_stream_metadata(request).await.expect("set");
    }
}
