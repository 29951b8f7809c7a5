//! The guard over a store in memory, as an attacker meets it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_core::{
    AllFrom, DeleteKind, EventData, EventStoreExt, EventType, ExpectedRevision, Filter,
    SubscribeFrom, SubscriptionMessage,
};
use gesta_memory::MemoryStore;

use super::*;
use crate::{Accounts, AddUser, Config, FirstUser, Mode, NewToken, Scope};

const DEADLINE: Duration = Duration::from_secs(20);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("in time")
}

fn here() -> IpAddr {
    [127, 0, 0, 1].into()
}

fn id(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

fn event(data: &str) -> EventData {
    EventData::json(EventType::new("t").expect("valid"), data.to_owned())
}

/// A store with accounts, and the way to it.
struct World {
    store: Arc<dyn EventStore>,
    access: Access,
    accounts: Accounts,
}

impl World {
    async fn open() -> Self {
        Self::over(Arc::new(MemoryStore::new()), Config::default()).await
    }

    async fn over(store: Arc<dyn EventStore>, config: Config) -> Self {
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
    async fn closed() -> Self {
        let world = Self::open().await;
        for (name, groups) in [("root", &["$admins"][..]), ("u", &[]), ("t", &["team"])] {
            world.add(name, groups).await.expect("added");
        }
        for name in ["root", "u", "t"] {
            world.login(name).await;
        }
        world
    }

    async fn add(&self, name: &str, groups: &[&str]) -> Result<()> {
        let add = AddUser {
            name: name.into(),
            password: format!("password of {name}"),
            groups: groups.iter().map(ToString::to_string).collect(),
            first: FirstUser::RefuseRights,
        };
        self.accounts.add_user(add).await
    }

    async fn try_login(&self, name: &str, password: &str) -> Result<Caller> {
        let header = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
        self.access.caller([header.as_bytes()], here()).await
    }

    /// The store as this user sees it, once the account is known.
    async fn login(&self, name: &str) -> Guarded {
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

    async fn token(&self, user: &str, scopes: &[Scope], prefixes: &[&str]) -> (String, Guarded) {
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

    async fn bearer(&self, text: &str) -> Result<Caller> {
        self.access
            .caller([format!("Bearer {text}").as_bytes()], here())
            .await
    }

    fn guard(&self, caller: Caller) -> Guarded {
        self.access.guard(Arc::clone(&self.store), caller)
    }

    fn anonymous(&self) -> Guarded {
        self.guard(Caller::anonymous(Some(here())))
    }

    async fn append(&self, name: &str) {
        self.store
            .append_to(name, ExpectedRevision::Any, vec![event("{}")])
            .await
            .expect("stored");
    }

    async fn set_acl(&self, name: &str, acl: &str) {
        let root = self.login("root").await;
        root.set_stream_metadata(metadata(name, acl))
            .await
            .expect("set");
    }
}

fn metadata(name: &str, json: &str) -> SetStreamMetadata {
    SetStreamMetadata {
        stream: id(name),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(json.to_owned()).expect("valid"),
    }
}

fn delete(name: &str, kind: DeleteKind) -> DeleteStream {
    DeleteStream {
        stream: id(name),
        expected: ExpectedRevision::Any,
        kind,
    }
}

fn is_forbidden<T: std::fmt::Debug>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(error) if matches!(error.kind(), ErrorKind::Forbidden(_)))
}

fn is_unauthenticated<T: std::fmt::Debug>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(error) if matches!(error.kind(), ErrorKind::Unauthenticated(_)))
}

async fn read(of: &Guarded, name: &str) -> Result<usize> {
    of.read_stream(ReadStream::forwards(id(name)))
        .await
        .map(|page| page.events.len())
}

async fn write(of: &Guarded, name: &str) -> Result<()> {
    of.append_to(name, ExpectedRevision::Any, vec![event("{}")])
        .await
        .map(drop)
}

/// Goal: without users everything is as it was, but for the streams that accounts will live in.
#[tokio::test]
async fn without_users_nobody_proves_anything() {
    let world = World::open().await;
    assert!(!world.access.is_on());
    let anybody = world.anonymous();
    write(&anybody, "a").await.expect("open");
    write(&anybody, "$ce-a").await.expect("open");
    anybody
        .set_stream_metadata(metadata("a", r#"{"$acl": 5}"#))
        .await
        .expect("open");
    assert_eq!(read(&anybody, "a").await.expect("open"), 1);
    for name in ["$user-x", "$token-x", "$settings", "$access"] {
        assert!(is_forbidden(write(&anybody, name).await), "{name}");
        assert!(
            is_forbidden(anybody.set_stream_metadata(metadata(name, "{}")).await),
            "{name}"
        );
        assert!(
            is_forbidden(
                anybody
                    .delete_stream(delete(name, DeleteKind::Tombstone))
                    .await
            ),
            "{name}"
        );
        let raw = EventData::json(EventType::new("$metadata").expect("valid"), "{}");
        let raw = anybody
            .append_to(&format!("$${name}"), ExpectedRevision::Any, vec![raw])
            .await;
        assert!(is_forbidden(raw), "{name}");
    }
    // Credentials are not looked at, as long as nobody has any.
    let caller = world.access.caller([&b"Digest x"[..], b"y"], here()).await;
    assert_eq!(caller.expect("open"), Caller::anonymous(Some(here())));
}

/// Goal: who does not say who they are may do nothing, and hears that and not what there is.
#[tokio::test]
async fn with_users_the_anonymous_may_do_nothing() {
    let world = World::closed().await;
    world.append("a").await;
    world.set_acl("a", r#"{"$acl":{"$r":"$all"}}"#).await;
    let anybody = world.anonymous();
    assert!(is_unauthenticated(read(&anybody, "a").await));
    assert!(is_unauthenticated(read(&anybody, "missing").await));
    assert!(is_unauthenticated(write(&anybody, "a").await));
    assert!(is_unauthenticated(anybody.info().await));
    assert!(is_unauthenticated(
        anybody.read_all(ReadAll::forwards()).await
    ));
    let request = ListStreams {
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    assert!(is_unauthenticated(anybody.list_streams(request).await));
    for bad in ["Basic dTpwYXNz", "Bearer gesta_x", "Digest x", "Basic", ""] {
        assert!(
            is_unauthenticated(world.access.caller([bad.as_bytes()], here()).await),
            "{bad}"
        );
    }
    let twice = STANDARD.encode("u:password of u");
    let header = format!("Basic {twice}");
    let twice = world
        .access
        .caller([header.as_bytes(), header.as_bytes()], here())
        .await;
    assert!(is_unauthenticated(twice));
}

/// Goal: no token without the scope admin reaches accounts, whoever it is of.
#[tokio::test]
async fn tokens_of_administrators_reach_accounts_only_with_the_scope_for_it() {
    let world = World::closed().await;
    let (_, weak) = world
        .token("root", &[Scope::Read, Scope::Append], &[])
        .await;
    let (_, narrow) = world.token("root", &[Scope::Admin], &["$user-"]).await;
    let (_, strong) = world.token("root", &[Scope::Admin], &[]).await;
    for name in ["$user-u", "$access", "$settings"] {
        for token in [&weak, &narrow] {
            assert!(is_forbidden(read(token, name).await), "{name}");
            assert!(is_forbidden(write(token, name).await), "{name}");
            assert!(
                is_forbidden(token.stream_metadata(id(name)).await),
                "{name}"
            );
        }
        assert!(
            is_forbidden(strong.delete_stream(delete(name, DeleteKind::Soft)).await),
            "{name}"
        );
        assert!(
            is_forbidden(
                strong
                    .set_stream_metadata(metadata(name, r#"{"$maxCount":1}"#))
                    .await
            ),
            "{name}"
        );
    }
    assert_eq!(read(&strong, "$user-u").await.expect("allowed"), 1);
    assert!(!is_forbidden(
        strong
            .append_to("$user-u", ExpectedRevision::Any, vec![event("{}")])
            .await
    ));
    let all = weak.read_all(ReadAll::forwards()).await.expect("allowed");
    assert!(
        all.events
            .iter()
            .all(|event| !event.stream.as_str().contains("$user")),
        "{all:?}"
    );
    let all = strong.read_all(ReadAll::forwards()).await.expect("allowed");
    assert!(
        all.events
            .iter()
            .any(|event| event.stream.as_str() == "$user-u")
    );
}

/// Goal: an administrator can look after accounts through a server.
#[tokio::test]
async fn accounts_are_changed_through_the_guard() {
    let world = World::closed().await;
    let root: Arc<dyn EventStore> = Arc::new(world.login("root").await);
    let through = Accounts::of(root);
    through
        .set_groups("u", vec!["$ops".into()])
        .await
        .expect("changed");
    through
        .set_password("u", "another password".into())
        .await
        .expect("changed");
    let token = NewToken {
        user: "u".into(),
        label: String::new(),
        scopes: vec![Scope::Read],
        prefixes: vec![],
        expires: None,
    };
    let text = through.create_token(token.clone()).await.expect("made");
    soon(async {
        while world.bearer(&text).await.is_err()
            || world.try_login("u", "another password").await.is_err()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(is_unauthenticated(
        world.try_login("u", "password of u").await
    ));
    let user: Arc<dyn EventStore> = Arc::new(world.login("t").await);
    assert!(is_forbidden(Accounts::of(user).create_token(token).await));
}

/// Goal: an append to several streams is refused as a whole if one of them is not allowed.
#[tokio::test]
async fn of_several_streams_each_is_checked_before_anything_is_written() {
    let world = World::closed().await;
    let user = world.login("u").await;
    for forbidden in ["$ce-x", "$user-u"] {
        let append = |name: &str| gesta_core::StreamAppend {
            stream: id(name),
            expected: ExpectedRevision::Any,
            events: vec![event("{}")],
        };
        let request = Append {
            streams: vec![append("a"), append(forbidden)],
        };
        assert!(is_forbidden(user.append(request).await), "{forbidden}");
    }
    assert!(
        world
            .store
            .read_stream(ReadStream::forwards(id("a")))
            .await
            .is_err()
    );
}

/// Goal: rights are those of the stream, metadata streams have their stream's, and odd forms are refused where they are
/// set and close where they are stored.
#[tokio::test]
async fn streams_have_rights_of_their_own() {
    let world = World::closed().await;
    let (user, member) = (world.login("u").await, world.login("t").await);
    world.append("plan").await;
    world
        .set_acl(
            "plan",
            r#"{"$acl":{"$r":"team","$w":["team"],"$mr":"team","$mw":[]}}"#,
        )
        .await;
    assert!(is_forbidden(read(&user, "plan").await));
    assert!(is_forbidden(read(&user, "$$plan").await));
    assert!(is_forbidden(write(&user, "plan").await));
    assert!(is_forbidden(user.stream_metadata(id("plan")).await));
    write(&member, "plan").await.expect("in the group");
    assert_eq!(read(&member, "plan").await.expect("in the group"), 2);
    assert_eq!(read(&member, "$$plan").await.expect("in the group"), 1);
    let raw = || {
        EventData::json(
            EventType::new("$metadata").expect("valid"),
            r#"{"$acl":{"$r":"$all"}}"#,
        )
    };
    assert!(is_forbidden(
        member
            .append_to("$$plan", ExpectedRevision::Any, vec![raw()])
            .await
    ));
    for odd in [r#"{"$acl":5}"#, r#"{"$acl":{"$r":{"a":1}}}"#] {
        let refused = user
            .set_stream_metadata(metadata("mine", odd))
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("metadata.$acl"), "{refused}");
        let raw = EventData::json(EventType::new("$metadata").expect("valid"), odd);
        let refused = user
            .append_to("$$mine", ExpectedRevision::Any, vec![raw])
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("metadata.$acl"), "{refused}");
    }
    world
        .store
        .set_stream_metadata(metadata("odd", r#"{"$acl":5}"#))
        .await
        .expect("stored");
    soon(async {
        while !is_forbidden(write(&member, "odd").await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(write(&world.login("root").await, "odd").await.is_ok());
}

/// Goal: pages of all events and of names leave out what may not be seen, and lead to the end all the same.
#[tokio::test]
async fn pages_leave_out_what_may_not_be_seen() {
    let world = World::closed().await;
    for name in ["a1", "b1", "b2", "b3", "c1", "$ce-x"] {
        world.append(name).await;
    }
    for name in ["b1", "b2", "b3"] {
        world.set_acl(name, r#"{"$acl":{"$r":"team"}}"#).await;
    }
    let (user, member) = (world.login("u").await, world.login("t").await);
    for (who, expected) in [
        (&user, &["a1", "c1"][..]),
        (&member, &["a1", "b1", "b2", "b3", "c1"]),
    ] {
        for limit in 1..=4 {
            let mut names = Vec::new();
            let mut request = ListStreams {
                prefix: String::new(),
                after: None,
                limit,
            };
            loop {
                let page = who.list_streams(request.clone()).await.expect("allowed");
                assert!(page.streams.len() <= limit);
                names.extend(page.streams.iter().map(|info| info.stream.to_string()));
                let Some(next) = page.next else { break };
                assert!(expected.contains(&next.as_str()), "{next} is hidden");
                request.after = Some(next);
            }
            assert_eq!(names, expected, "{limit}");
            let mut seen = Vec::new();
            let mut request = ReadAll::forwards().limit(limit);
            loop {
                let page = who.read_all(request.clone()).await.expect("allowed");
                seen.extend(page.events.iter().map(|event| event.stream.to_string()));
                if page.end {
                    break;
                }
                request = request.from(AllFrom::Checkpoint(page.next));
            }
            seen.retain(|name| !name.starts_with("$$"));
            assert_eq!(seen, expected, "{limit}");
        }
    }
    let hidden = ListStreams {
        prefix: "$".into(),
        after: None,
        limit: 10,
    };
    let page = user.list_streams(hidden).await.expect("allowed");
    assert!(
        page.streams
            .iter()
            .all(|info| info.stream.as_str().starts_with("$$")),
        "{page:?}"
    );
    let (_, token) = world.token("root", &[Scope::Read], &["b"]).await;
    let page = token
        .list_streams(ListStreams {
            prefix: String::new(),
            after: None,
            limit: 10,
        })
        .await;
    assert_eq!(page.expect("allowed").streams.len(), 3);
}

fn all() -> Subscribe {
    Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::Start,
    }
}

async fn caught_up(subscription: &mut Subscription) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        match soon(subscription.next())
            .await
            .expect("running")
            .expect("running")
        {
            SubscriptionMessage::Event { event, .. } => seen.push(event.stream.to_string()),
            SubscriptionMessage::Checkpoint(_) => {}
            SubscriptionMessage::CaughtUp(_) => return seen,
        }
    }
}

/// Goal: a running subscription shows no more than the rights of this moment, and ends with its account.
#[tokio::test]
async fn running_subscriptions_lose_what_their_caller_loses() {
    let world = World::closed().await;
    world.append("a").await;
    world.set_acl("plan", r#"{"$acl":{"$r":"team"}}"#).await;
    world.append("plan").await;
    let (root, member) = (world.login("root").await, world.login("t").await);
    let mut of_admin = root.subscribe(all()).await.expect("allowed");
    assert!(
        caught_up(&mut of_admin)
            .await
            .contains(&"$user-u".to_owned())
    );
    let mut of_member = member.subscribe(all()).await.expect("allowed");
    let seen = caught_up(&mut of_member).await;
    assert!(
        seen.contains(&"plan".to_owned()) && !seen.iter().any(|name| name.starts_with("$user"))
    );
    let plan = Subscribe {
        to: SubscribeTo::Stream(id("plan")),
        from: SubscribeFrom::Start,
    };
    let mut of_plan = member.subscribe(plan.clone()).await.expect("allowed");
    assert_eq!(caught_up(&mut of_plan).await, ["plan"]);
    // A demoted administrator sees no account that changes from now on.
    world.add("other", &["$admins"]).await.expect("added");
    world
        .accounts
        .set_groups("root", vec![])
        .await
        .expect("demoted");
    world
        .accounts
        .set_groups("t", vec![])
        .await
        .expect("left the group");
    let ended = async {
        loop {
            match of_plan.next().await {
                Some(Ok(_)) => {}
                other => return other,
            }
        }
    };
    let error = soon(ended).await.expect("an error").expect_err("ended");
    assert!(matches!(error.kind(), ErrorKind::Forbidden(_)), "{error}");
    world.append("plan").await;
    world
        .accounts
        .set_password("u", "a new password".into())
        .await
        .expect("changed");
    world.append("b").await;
    for subscription in [&mut of_admin, &mut of_member] {
        loop {
            let event = soon(subscription.next_event()).await.expect("running");
            assert!(event.stream.as_str() != "plan", "{event:?}");
            assert!(event.stream.as_str() != "$user-u", "{event:?}");
            if event.stream.as_str() == "b" {
                break;
            }
        }
    }
    assert!(is_forbidden(member.subscribe(plan).await));
    world.accounts.disable("t").await.expect("disabled");
    let error = soon(of_member.next())
        .await
        .expect("an error")
        .expect_err("ended");
    assert!(
        matches!(error.kind(), ErrorKind::Unauthenticated(_)),
        "{error}"
    );
    assert!(soon(of_member.next()).await.is_none());
}

/// Goal: a reader who may see nothing for long still learns how far everything was looked at.
#[tokio::test]
async fn what_is_left_out_moves_the_checkpoint() {
    let world = World::closed().await;
    let user = world.login("u").await;
    for _ in 0..3 {
        let events = (0..900).map(|_| event("{}")).collect();
        world
            .store
            .append_to("$hidden", ExpectedRevision::Any, events)
            .await
            .expect("stored");
    }
    let mut subscription = user.subscribe(all()).await.expect("allowed");
    let mut checkpoints = 0;
    loop {
        match soon(subscription.next())
            .await
            .expect("running")
            .expect("running")
        {
            SubscriptionMessage::Event { event, .. } => panic!("{event:?}"),
            SubscriptionMessage::Checkpoint(_) => checkpoints += 1,
            SubscriptionMessage::CaughtUp(_) => break,
        }
    }
    assert!(checkpoints >= 2, "{checkpoints}");
}

/// Goal: with the first user every anonymous subscription ends, and so does every later call.
#[tokio::test]
async fn the_first_user_closes_the_store() {
    let world = World::open().await;
    world.append("a").await;
    let anybody = world.anonymous();
    let mut running = anybody.subscribe(all()).await.expect("open");
    caught_up(&mut running).await;
    world.add("root", &["$admins"]).await.expect("added");
    let error = soon(async {
        loop {
            match running.next().await.expect("an end") {
                Ok(SubscriptionMessage::Event { event, .. }) => {
                    assert_eq!(names::kind(event.stream.as_str()), Kind::User, "{event:?}");
                }
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    })
    .await;
    let is_closed = matches!(
        error.kind(),
        ErrorKind::Unauthenticated(_) | ErrorKind::Unavailable(_)
    );
    assert!(is_closed, "{error}");
    soon(world.access.loaded()).await;
    assert!(is_unauthenticated(read(&anybody, "a").await));
}

/// Goal: a revoked token and one that has expired are worth nothing, nor is one of an account that began again.
#[tokio::test]
async fn tokens_end() {
    let world = World::closed().await;
    let (text, token) = world.token("u", &[Scope::Read], &[]).await;
    world.append("a").await;
    assert_eq!(read(&token, "a").await.expect("allowed"), 1);
    let of_stream = Subscribe {
        to: SubscribeTo::Stream(id("a")),
        from: SubscribeFrom::Start,
    };
    let mut running = token.subscribe(of_stream).await.expect("allowed");
    caught_up(&mut running).await;
    let shown = world.accounts.tokens().await.expect("listed");
    assert!(
        shown[0].active
            && !format!("{shown:?}").contains(text.rsplit('_').next().expect("a secret"))
    );
    world
        .accounts
        .revoke_token(&shown[0].id)
        .await
        .expect("revoked");
    let error = soon(running.next())
        .await
        .expect("an error")
        .expect_err("ended");
    assert!(
        matches!(error.kind(), ErrorKind::Unauthenticated(_)),
        "{error}"
    );
    assert!(is_unauthenticated(read(&token, "a").await));
    assert!(is_unauthenticated(world.bearer(&text).await));
    let guess = format!("{}A", &text[..text.len() - 1]);
    assert!(is_unauthenticated(world.bearer(&guess).await));
}

/// A clock of the time since some moment that a test moves.
static LATER: AtomicU64 = AtomicU64::new(0);

fn moved_uptime() -> Duration {
    gesta_core::uptime() + Duration::from_secs(LATER.load(Ordering::SeqCst))
}

/// A store whose subscriptions can be broken.
struct Breakable {
    inner: MemoryStore,
    is_broken: AtomicBool,
}

#[async_trait]
impl EventStore for Breakable {
    async fn info(&self) -> Result<StoreInfo> {
        self.inner.info().await
    }
    async fn ready(&self) -> Result<()> {
        self.inner.ready().await
    }
    async fn append(&self, request: Append) -> Result<Appended> {
        self.inner.append(request).await
    }
    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.inner.read_stream(request).await
    }
    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.inner.read_all(request).await
    }
    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.inner.list_streams(request).await
    }
    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.inner.delete_stream(request).await
    }
    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.inner.stream_metadata(stream).await
    }
    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.inner.set_stream_metadata(request).await
    }
    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(Error::unavailable("away"));
        }
        self.inner.subscribe(request).await
    }
    async fn shutdown(&self) -> Result<()> {
        self.inner.shutdown().await
    }
}

/// Goal: rights that may have been taken away do not hold while nobody can hear of it; they do again afterwards.
#[tokio::test]
async fn without_news_nothing_is_allowed() {
    let store = Arc::new(Breakable {
        inner: MemoryStore::new(),
        is_broken: AtomicBool::new(false),
    });
    let config = Config {
        uptime: moved_uptime,
        ..Config::default()
    };
    let world = World::over(Arc::clone(&store) as Arc<dyn EventStore>, config).await;
    world.add("root", &["$admins"]).await.expect("added");
    let root = world.login("root").await;
    let mut running = root.subscribe(all()).await.expect("allowed");
    caught_up(&mut running).await;
    store.is_broken.store(true, Ordering::SeqCst);
    LATER.store(60, Ordering::SeqCst);
    let error = write(&root, "a").await.expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    assert!(world.access.ready().is_err() && root.ready().await.is_err());
    let error = soon(async {
        loop {
            match running.next().await.expect("an end") {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    })
    .await;
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    store.is_broken.store(false, Ordering::SeqCst);
    soon(async {
        while write(&root, "a").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(world.access.ready().is_ok());
}

/// Goal: until the accounts are known nothing is allowed, also on a store that turns out to be open.
#[tokio::test]
async fn nothing_is_allowed_until_the_accounts_are_known() {
    let store = Arc::new(Breakable {
        inner: MemoryStore::new(),
        is_broken: AtomicBool::new(true),
    });
    let access = Access::start(Arc::clone(&store) as Arc<dyn EventStore>, Config::default());
    let anybody = access.guard(
        Arc::clone(&store) as Arc<dyn EventStore>,
        Caller::anonymous(None),
    );
    let error = write(&anybody, "a").await.expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    assert!(access.is_on() && access.ready().is_err());
    store.is_broken.store(false, Ordering::SeqCst);
    soon(access.loaded()).await;
    write(&anybody, "a").await.expect("open");
}

/// Goal: the server does not forget that there was a user, whatever was done to the marker in the database.
#[tokio::test]
async fn a_store_stays_closed_when_its_marker_is_gone() {
    for kind in [DeleteKind::Soft, DeleteKind::Tombstone] {
        let world = World::closed().await;
        world
            .store
            .delete_stream(delete(names::MARKER, kind))
            .await
            .expect("deleted");
        let again = World::over(Arc::clone(&world.store), Config::default()).await;
        assert!(again.access.is_on(), "{kind:?}");
        assert!(write(&again.anonymous(), "a").await.is_err(), "{kind:?}");
    }
    let world = World::closed().await;
    let hidden = metadata(names::MARKER, r#"{"$tb": 100}"#);
    world
        .store
        .set_stream_metadata(hidden)
        .await
        .expect("hidden");
    let again = World::over(Arc::clone(&world.store), Config::default()).await;
    assert!(again.access.is_on() && write(&again.anonymous(), "a").await.is_err());
    let config = Config {
        mode: Mode::On,
        ..Config::default()
    };
    let forced = World::over(Arc::new(MemoryStore::new()), config).await;
    assert!(
        is_unauthenticated(write(&forced.anonymous(), "a").await),
        "there are no users"
    );
}

/// Goal: no form of an error, a log line or Debug shows a secret.
#[tokio::test]
async fn secrets_are_not_shown() {
    let world = World::closed().await;
    let error = world
        .try_login("u", "hunter2hunter2")
        .await
        .expect_err("refused");
    let (text, guarded) = world.token("u", &[Scope::Read], &[]).await;
    let secret = text.rsplit('_').next().expect("a secret");
    let shown = format!(
        "{error} {error:?} {guarded:?} {:?} {:?}",
        world.access, world.accounts
    );
    assert!(
        !shown.contains("hunter2") && !shown.contains(secret),
        "{shown}"
    );
    let add = AddUser {
        name: "x".into(),
        password: "hunter2hunter2".into(),
        groups: vec![],
        first: FirstUser::KeepRights,
    };
    assert!(!format!("{add:?}").contains("hunter2"));
}
