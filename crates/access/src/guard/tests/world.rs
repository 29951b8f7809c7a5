//! A store with accounts, and callers of it.

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_core::{DeleteKind, EventData, EventStoreExt, EventType, ExpectedRevision};
use gesta_memory::MemoryStore;

use super::super::*;
use crate::{Accounts, AddUser, Config, FirstUser, NewToken, Scope};

const DEADLINE: Duration = Duration::from_secs(120);

pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("in time")
}

/// A configuration in which no time passes: the news of the accounts does not grow old because this machine stands
/// still for a while, and what a user has read or written stays outstanding.
pub(super) fn config() -> Config {
    Config {
        uptime: || Duration::ZERO,
        ..Config::default()
    }
}

pub(super) fn here() -> IpAddr {
    [127, 0, 0, 1].into()
}

pub(super) fn id(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

pub(super) fn event(data: &str) -> EventData {
    EventData::json(EventType::new("t").expect("valid"), data.to_owned())
}

/// A store with accounts, and the way to it.
pub(super) struct World {
    pub(super) store: Arc<dyn EventStore>,
    pub(super) access: Access,
    pub(super) accounts: Accounts,
}

impl World {
    pub(super) async fn open() -> Self {
        Self::over(Arc::new(MemoryStore::new()), config()).await
    }

    pub(super) async fn over(store: Arc<dyn EventStore>, config: Config) -> Self {
        let access = Access::start(Arc::clone(&store), config);
        soon(access.loaded()).await;
        let accounts = Accounts::of(Arc::clone(&store));
        Self {
            store,
            access,
            accounts,
        }
    }

    /// With the users root, an administrator, u, and t of the group team; each one's password is long enough.
    pub(super) async fn closed() -> Self {
        Self::open().await.with_users().await
    }

    /// Adds the users of [`World::closed`].
    pub(super) async fn with_users(self) -> Self {
        for (name, groups) in [("root", &["$admins"][..]), ("u", &[]), ("t", &["team"])] {
            self.add(name, groups).await.expect("added");
        }
        for name in ["root", "u", "t"] {
            self.login(name).await;
        }
        self
    }

    pub(super) async fn add(&self, name: &str, groups: &[&str]) -> Result<()> {
        let add = AddUser {
            name: name.into(),
            password: format!("password of {name}"),
            groups: groups.iter().map(ToString::to_string).collect(),
            full_name: String::new(),
            first: FirstUser::RefuseRights,
        };
        self.accounts.add_user(add).await
    }

    pub(super) async fn try_login(&self, name: &str, password: &str) -> Result<Caller> {
        let header = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
        self.access.caller([header.as_bytes()], here()).await
    }

    /// The store as this user sees it, once the account is known.
    pub(super) async fn login(&self, name: &str) -> Guarded {
        let password = format!("password of {name}");
        soon(async {
            loop {
                if let Ok(caller) = self.try_login(name, &password).await
                    && caller != Caller::anonymous(Some(here()))
                {
                    return self.guard(caller);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    pub(super) async fn token(
        &self,
        user: &str,
        scopes: &[Scope],
        prefixes: &[&str],
    ) -> (String, Guarded) {
        let token = NewToken {
            user: user.into(),
            label: "test".into(),
            scopes: scopes.to_vec(),
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            expires: None,
        };
        let text = self.accounts.create_token(token).await.expect("made");
        let guarded = soon(async {
            loop {
                match self.bearer(&text).await {
                    Ok(caller) => return self.guard(caller),
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        })
        .await;
        (text, guarded)
    }

    pub(super) async fn bearer(&self, text: &str) -> Result<Caller> {
        self.access
            .caller([format!("Bearer {text}").as_bytes()], here())
            .await
    }

    pub(super) fn guard(&self, caller: Caller) -> Guarded {
        self.access.guard(Arc::clone(&self.store), caller)
    }

    pub(super) fn anonymous(&self) -> Guarded {
        self.guard(Caller::anonymous(Some(here())))
    }

    pub(super) async fn append(&self, name: &str) {
        self.store
            .append_to(name, ExpectedRevision::Any, vec![event("{}")])
            .await
            .expect("stored");
    }

    pub(super) async fn set_acl(&self, name: &str, acl: &str) {
        let root = self.login("root").await;
        root.set_stream_metadata(metadata(name, acl))
            .await
            .expect("set");
    }
}

pub(super) fn metadata(name: &str, json: &str) -> SetStreamMetadata {
    SetStreamMetadata {
        stream: id(name),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(json.to_owned()).expect("valid"),
    }
}

pub(super) fn delete(name: &str, kind: DeleteKind) -> DeleteStream {
    DeleteStream {
        stream: id(name),
        expected: ExpectedRevision::Any,
        kind,
    }
}

pub(super) fn is_forbidden<T: std::fmt::Debug>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(error) if matches!(error.kind(), ErrorKind::Forbidden(_)))
}

pub(super) fn is_unauthenticated<T: std::fmt::Debug>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(error) if matches!(error.kind(), ErrorKind::Unauthenticated(_)))
}

pub(super) async fn read(of: &Guarded, name: &str) -> Result<usize> {
    of.read_stream(ReadStream::forwards(id(name)))
        .await
        .map(|page| page.events.len())
}

pub(super) async fn write(of: &Guarded, name: &str) -> Result<()> {
    of.append_to(name, ExpectedRevision::Any, vec![event("{}")])
        .await
        .map(drop)
}
