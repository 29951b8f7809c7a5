//! Three nodes of a store with users.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_access::{Accounts, AddUser, FirstUser, NewToken, Scope};
use gesta_client::{Config, Credentials, HttpStore};
use gesta_core::{
    ErrorKind, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision,
    SetStreamMetadata, StreamId, StreamMetadata,
};
use gesta_groups::{ConsumerGroups, Create, Error, GroupId};

use crate::nodes::{Node, Nodes};
use crate::raw::{Raw, soon};
use crate::support::Tries;

const NODES: usize = 3;
/// The status of an answer that nothing can be done.
const UNAVAILABLE: u16 = 503;
/// Those beside the first administrator, and their groups.
const USERS: [(&str, &[&str]); 3] = [("ops", &["$ops"]), ("user", &[]), ("mate", &["team"])];

pub(crate) struct World {
    pub(crate) nodes: Nodes,
    /// The node that owns the only log, and one that forwards to it.
    pub(crate) owner: usize,
    pub(crate) forwarder: usize,
}

fn password_of(name: &str) -> String {
    format!("password of {name}")
}

/// The outcome of a call, which is made again while nothing can be done: after the machine has stood still a node has
/// no news of the accounts for a moment, and does not hear the owner.
pub(crate) async fn served<T>(call: impl AsyncFn() -> gesta_core::Result<T>) -> T {
    let tries = Tries::of("a call of the store");
    soon(async {
        loop {
            match call().await {
                Ok(outcome) => return outcome,
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable(_)) => {
                    tokio::time::sleep(tries.pause_after(error)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

/// What a user says who they are.
pub(crate) fn basic(name: &str) -> String {
    let login = format!("{name}:{}", password_of(name));
    format!("Basic {}", STANDARD.encode(login))
}

impl World {
    /// Starts the nodes; `None`, said aloud, without PostgreSQL.
    pub(crate) async fn start() -> Option<Self> {
        let mut password = tempfile::NamedTempFile::new().unwrap();
        writeln!(password, "{}", password_of("root")).unwrap();
        let file = password.path().to_str().unwrap();
        let commands: [&[&str]; 2] = [
            &["virtual-streams", "on"],
            &["user", "add", "root", "--admin", "--password-file", file],
        ];
        let nodes = Nodes::start_with(NODES, 1, &commands, &[]).await?;
        let owner = tokio::task::block_in_place(|| nodes.owner(0));
        let world = Self {
            owner,
            forwarder: (owner + 1) % NODES,
            nodes,
        };
        for node in 0..NODES {
            world.knows_the_others(node).await;
        }
        for (name, groups) in USERS {
            let add = AddUser {
                name: name.into(),
                password: password_of(name),
                groups: groups.iter().map(ToString::to_string).collect(),
                full_name: String::new(),
                first: FirstUser::RefuseRights,
            };
            let accounts = world.accounts(world.forwarder);
            served(async || accounts.add_user(add.clone()).await).await;
            world.until_all_answer(&basic(name), 200).await;
        }
        Some(world)
    }

    fn node(&self, node: usize) -> &Node {
        &self.nodes.all[node]
    }

    pub(crate) fn address(&self, node: usize) -> SocketAddr {
        self.node(node).listen
    }

    /// A third node.
    pub(crate) fn third(&self) -> usize {
        (0..NODES)
            .find(|node| ![self.owner, self.forwarder].contains(node))
            .unwrap()
    }

    /// The store as an administrator has it through a node.
    pub(crate) fn store(&self, node: usize) -> HttpStore {
        let config = Config {
            credentials: Some(Credentials::Password {
                login: "root".to_owned(),
                password: password_of("root"),
            }),
            ..Config::default()
        };
        HttpStore::with_config(&self.node(node).url(), config).unwrap()
    }

    /// The accounts as an administrator changes them through a node.
    pub(crate) fn accounts(&self, node: usize) -> Accounts {
        Accounts::of(Arc::new(self.store(node)))
    }

    /// The answer of a node to a call, which is made again while nothing can be done; see [`served`].
    pub(crate) async fn answer(
        &self,
        node: usize,
        call: (&str, &str),
        authorization: &str,
        body: &str,
    ) -> Raw {
        let tries = Tries::of(format!("{} {} through {node}", call.0, call.1));
        soon(async {
            loop {
                let raw = Raw::call(self.address(node), call, authorization, body).await;
                if raw.status() != UNAVAILABLE {
                    return raw;
                }
                tokio::time::sleep(tries.pause_after(UNAVAILABLE)).await;
            }
        })
        .await
    }

    /// The status of that answer.
    pub(crate) async fn status(
        &self,
        node: usize,
        call: (&str, &str),
        authorization: &str,
        body: &str,
    ) -> u16 {
        self.answer(node, call, authorization, body).await.status()
    }

    /// Waits until the node knows where clients reach the others.
    async fn knows_the_others(&self, node: usize) {
        soon(async {
            loop {
                let call = ("GET", "/info");
                let raw = self.answer(node, call, &basic("root"), "").await;
                let info = raw.rest().await;
                let (_, body) = info.split_once("\r\n\r\n").unwrap();
                let info: serde_json::Value = serde_json::from_str(body).unwrap();
                let nodes = info["cluster"]["nodes"].as_array().unwrap().iter();
                if nodes.filter(|node| node["api"].is_string()).count() == NODES {
                    return;
                }
            }
        })
        .await;
    }

    /// Waits until every node answers this to who says that.
    pub(crate) async fn until_all_answer(&self, authorization: &str, status: u16) {
        for node in 0..NODES {
            soon(async {
                while self.status(node, ("GET", "/info"), authorization, "").await != status {}
            })
            .await;
        }
    }

    /// Makes a token through a node; what its holder says, once every node knows it.
    pub(crate) async fn token(&self, user: &str, scopes: &[Scope], prefixes: &[&str]) -> String {
        let token = NewToken {
            user: user.into(),
            label: String::new(),
            scopes: scopes.to_vec(),
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            expires: None,
        };
        let accounts = self.accounts(self.forwarder);
        let made = served(async || accounts.create_token(token.clone()).await).await;
        let header = format!("Bearer {made}");
        self.until_all_answer(&header, 200).await;
        header
    }

    /// Stores an event in a stream.
    pub(crate) async fn seed(&self, stream: &str) {
        let event = EventData::json(EventType::new("T").unwrap(), "1");
        let store = self.store(self.forwarder);
        served(async || {
            let events = vec![event.clone()];
            store.append_to(stream, ExpectedRevision::Any, events).await
        })
        .await;
    }

    pub(crate) async fn set_metadata(&self, stream: &str, json: &str) {
        let request = SetStreamMetadata {
            stream: StreamId::new(stream).unwrap(),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(json.to_owned()).unwrap(),
        };
        let store = self.store(self.forwarder);
        served(async || store.set_stream_metadata(request.clone()).await).await;
    }

    /// Makes the group `g` of a stream, or of `$all`.
    pub(crate) async fn group(&self, source: &str) {
        let create = Create::new(GroupId::new(source, "g").unwrap());
        let groups = self.store(self.owner).groups();
        served(async || match groups.create(&create).await {
            Err(Error::Store(error)) => Err(error),
            made => Ok(made.unwrap()),
        })
        .await;
    }
}
