//! What ends with its rights: subscriptions, tokens, a store that gets no news.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use gesta_core::shares::{self, Holder, Shares};
use gesta_core::{
    DeleteKind, EventStoreExt, ExpectedRevision, Filter, Incarnation, Query, Resolved, SharedEvent,
    SubscribeFrom, SubscriptionMessage, resolve_one_by_one,
};
use gesta_memory::MemoryStore;

use super::super::*;
use super::listed;
use super::world::*;
use crate::{AddUser, Config, FirstUser, Mode, Scope};

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
            SubscriptionMessage::Checkpoint(_) | SubscriptionMessage::FellBehind(_) => {}
            SubscriptionMessage::CaughtUp(_) => return seen,
        }
    }
}

/// What a subscription ends with.
async fn error_of(subscription: &mut Subscription) -> Error {
    let ended = async {
        loop {
            match subscription.next().await {
                Some(Ok(_)) => {}
                other => return other,
            }
        }
    };
    soon(ended).await.expect("an error").expect_err("ended")
}

/// Goal: a running subscription shows no more than the rights of this moment.
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
    let error = error_of(&mut of_plan).await;
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
}

/// Goal: a running subscription ends with its account.
#[tokio::test]
async fn a_running_subscription_ends_with_its_account() {
    let world = World::closed().await;
    let member = world.login("t").await;
    let mut of_member = member.subscribe(all()).await.expect("allowed");
    caught_up(&mut of_member).await;
    world.accounts.disable("t").await.expect("disabled");
    let error = error_of(&mut of_member).await;
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
        let events: Vec<_> = (0..900).map(|_| event("{}")).collect();
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
            SubscriptionMessage::FellBehind(_) => {}
            SubscriptionMessage::CaughtUp(_) => break,
        }
    }
    assert!(checkpoints >= 2, "{checkpoints}");
}

/// What happened: an event was judged when it came from the store, and stayed judged while its reader took the
/// checkpoints before it, for however long.
#[tokio::test]
async fn an_event_that_waits_behind_checkpoints_is_judged_again() {
    let world = World::closed().await;
    // The store counts what its filter skips from the hidden event on, the guard from the start.
    for (name, readers) in [("plan-hidden", "[]"), ("plan", "\"team\"")] {
        let events: Vec<_> = (0..600).map(|_| event("{}")).collect();
        let stored = world
            .store
            .append_to("other", ExpectedRevision::Any, events);
        stored.await.expect("stored");
        let acl = format!(r#"{{"$acl":{{"$r":{readers}}}}}"#);
        world.set_acl(name, &acl).await;
        world.append(name).await;
    }
    let member = world.login("t").await;
    let plans = Query {
        stream_prefixes: vec!["plan".to_owned()],
        ..Query::default()
    };
    let plans = Subscribe {
        to: SubscribeTo::All(Filter::query(plans)),
        from: SubscribeFrom::Start,
    };
    let mut subscription = member.subscribe(plans).await.expect("allowed");
    let first = soon(subscription.next()).await.expect("running");
    let first = first.expect("running");
    assert!(
        matches!(first, SubscriptionMessage::Checkpoint(_)),
        "{first:?}"
    );
    let mut changes = world.access.shared.changes.subscribe();
    let left = world.accounts.set_groups("t", vec![]);
    left.await.expect("left the group");
    soon(changes.changed()).await.expect("followed");
    while !is_forbidden(read(&member, "plan").await) {
        soon(changes.changed()).await.expect("followed");
    }
    let seen = caught_up(&mut subscription).await;
    assert!(seen.is_empty(), "{seen:?}");
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
            && !format!("{shown:?}").contains(text.splitn(3, '_').nth(2).expect("a secret"))
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

/// The time since some moment, in seconds. Only the test below moves it.
static LATER: AtomicU64 = AtomicU64::new(0);

fn moved_uptime() -> Duration {
    Duration::from_secs(LATER.load(Ordering::SeqCst))
}

/// A store whose subscriptions can be broken, whose pages of names may be short, and where reads take turns.
struct Breakable {
    inner: Arc<MemoryStore>,
    is_broken: AtomicBool,
    /// The most names on a page.
    names_max: usize,
    turns: Arc<Shares>,
}

impl Breakable {
    fn new() -> Self {
        Self {
            inner: Arc::new(MemoryStore::new()),
            is_broken: AtomicBool::new(false),
            names_max: usize::MAX,
            turns: Shares::of_few(2),
        }
    }
}

#[async_trait]
impl EventStore for Breakable {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.inner.incarnation().await
    }

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
        let _turn = self.turns.turn(&shares::current()).await;
        self.inner.read_stream(request).await
    }
    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.inner.read_all(request).await
    }
    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        let _turn = self.turns.turn(&shares::current()).await;
        let limit = request.limit.min(self.names_max);
        self.inner
            .list_streams(ListStreams { limit, ..request })
            .await
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
        let _turn = self.turns.turn(&shares::current()).await;
        self.inner.subscribe(request).await
    }
    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        resolve_one_by_one(self, events).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.inner.shutdown().await
    }
}

/// Goal: rights that may have been taken away do not hold while nobody can learn of it; they do again afterwards.
#[tokio::test]
async fn without_news_nothing_is_allowed() {
    let store = Arc::new(Breakable::new());
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

/// What happened: the accounts were read in the line of those who read, so users who caught up again and again could
/// keep them from being followed, and everybody was refused after five seconds. Goal: the accounts are read and
/// followed although users have all turns to read, and ask for more.
#[tokio::test]
async fn the_accounts_are_followed_while_users_have_all_turns_to_read() {
    let store = Arc::new(Breakable::new());
    let [one, other] = ["one", "other"].map(|name| Holder::User(name.into()));
    let turn = |holder: &Holder| store.turns.turn(holder).now_or_never();
    let held = [&one, &other].map(|holder| turn(holder).expect("free"));
    let mut asked: Vec<_> = (0..16).map(|_| Box::pin(store.turns.turn(&one))).collect();
    for turn in &mut asked {
        assert!(turn.as_mut().now_or_never().is_none());
    }
    let config_on = Config {
        mode: Mode::On,
        ..config()
    };
    let access = Access::start(Arc::clone(&store) as Arc<dyn EventStore>, config_on);
    soon(access.loaded()).await;
    assert!(access.ready().is_ok() && !access.has_users());
    // Another server, which has turns of its own.
    let beside = World::over(Arc::clone(&store.inner) as Arc<dyn EventStore>, config()).await;
    beside.add("root", &["$admins"]).await.expect("added");
    soon(async {
        while !access.has_users() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(store.turns.load().waiting, asked.len());
    drop((asked, held));
}

/// Goal: until the accounts are known nothing is allowed, also on a store that turns out to be open.
#[tokio::test]
async fn nothing_is_allowed_until_the_accounts_are_known() {
    let store = Arc::new(Breakable {
        is_broken: AtomicBool::new(true),
        ..Breakable::new()
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
        let again = World::over(Arc::clone(&world.store), config()).await;
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
    let again = World::over(Arc::clone(&world.store), config()).await;
    assert!(again.access.is_on() && write(&again.anonymous(), "a").await.is_err());
    let config = Config {
        mode: Mode::On,
        ..config()
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
    let secret = text.splitn(3, '_').nth(2).expect("a secret");
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
        full_name: String::new(),
        first: FirstUser::KeepRights,
    };
    assert!(!format!("{add:?}").contains("hunter2"));
}

/// Goal: one user takes no more than its share, whoever else calls, and tokens count for their user.
#[tokio::test]
async fn users_have_limits() {
    let config = Config {
        user_bytes_per_second: 100,
        ..config()
    };
    let world = World::over(Arc::new(MemoryStore::new()), config).await;
    world.add("root", &["$admins"]).await.expect("added");
    world.add("u", &[]).await.expect("added");
    let (root, user) = (world.login("root").await, world.login("u").await);
    let (_, token) = world.token("u", &[Scope::Append, Scope::Read], &[]).await;
    let large = event(&format!("\"{}\"", "x".repeat(5_000)));
    let append = |of: &Guarded| {
        let (of, large) = (of.clone(), large.clone());
        async move { of.append_to("a", ExpectedRevision::Any, vec![large]).await }
    };
    append(&user).await.expect("the first one");
    for other in [&user, &token] {
        let error = append(other).await.expect_err("refused");
        assert!(matches!(error.kind(), ErrorKind::Overloaded(_)), "{error}");
        assert!(other.read_all(ReadAll::forwards()).await.is_err());
    }
    assert!(append(&root).await.is_ok(), "another user");
}

/// What happened: a list of which nothing may be shown was read to its end, however long, and cost its user nothing.
#[tokio::test]
async fn names_that_are_looked_at_count_for_the_user() {
    let config = Config {
        user_bytes_per_second: 100,
        ..config()
    };
    let world = World::over(Arc::new(MemoryStore::new()), config)
        .await
        .with_users()
        .await;
    for number in 0..100 {
        world.append(&format!("b-{number}")).await;
    }
    let (_, token) = world.token("u", &[Scope::Read], &["y-", "z-"]).await;
    let list = || {
        token.list_streams(ListStreams {
            prefix: String::new(),
            after: None,
            limit: 10,
        })
    };
    assert_eq!(list().await.expect("allowed").streams, []);
    let error = list().await.expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Overloaded(_)), "{error}");
}

/// Goal: a list leads to the names that may be seen, however many pages of hidden ones come before them.
///
/// What happened: after 200 pages of hidden names it ended with an error, and nothing led past them.
#[tokio::test]
async fn a_list_leads_past_many_hidden_names() {
    let store = Breakable {
        names_max: 1,
        ..Breakable::new()
    };
    let world = World::over(Arc::new(store), config())
        .await
        .with_users()
        .await;
    world.append("a").await;
    for number in 0..250 {
        let name = format!("b-{number}");
        world.append(&name).await;
        world.set_acl(&name, r#"{"$acl":{"$r":"team"}}"#).await;
    }
    world.append("c").await;
    let user = world.login("u").await;
    for limit in [1, 2, 10] {
        assert_eq!(listed(&user, limit, &["a", "c"]).await, ["a", "c"]);
    }
}
