//! Tests that readiness tells whether appends can succeed, and that `/info` and the metrics tell what a commit waits
//! for.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use gesta_access::Accounts;
use gesta_core::{
    Append, Appended, Durability, Error, ErrorKind, EventStore, ReadStream, Result, StoreInfo,
    StreamPage,
};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;

use crate::access::world::{World, access_config, add, basic};
use crate::client::{Raw, Server, config, soon};
use crate::groups::{data, deliveries};
use crate::logged::Logged;

/// A store that can be read, and appended to unless there is a reason why not.
#[derive(Default)]
struct Stuck {
    inner: MemoryStore,
    why: Mutex<Option<&'static str>>,
    /// Durability that the store tells, if it is not that of the store inside.
    durability: Mutex<Option<Durability>>,
    /// The error with which the streams of carts cannot be read, nor what groups keep be appended.
    failure: Mutex<Option<Error>>,
}

#[async_trait]
impl Wrapper for Stuck {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn info(&self) -> Result<StoreInfo> {
        let mut info = self.inner.info().await?;
        if let Some(durability) = &*self.durability.lock().unwrap() {
            info.durability = durability.clone();
        }
        Ok(info)
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        if request.stream.as_str().starts_with("cart-")
            && let Some(error) = &*self.failure.lock().unwrap()
        {
            return Err(error.clone());
        }
        self.inner.read_stream(request).await
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let mut parts = request.streams.iter();
        if parts.any(|part| part.stream.as_str().starts_with("$persistentsubscription-"))
            && let Some(error) = &*self.failure.lock().unwrap()
        {
            return Err(error.clone());
        }
        self.inner.append(request).await
    }

    async fn ready(&self) -> Result<()> {
        match *self.why.lock().unwrap() {
            None => Ok(()),
            Some(why) => Err(Error::unavailable(why).caused_by("a secret")),
        }
    }
}

/// What happened: readiness asked for the last position only, which a store answers whose appends all fail (its file is
/// read-only, its pipeline has ended), and each failed probe left an error in the log. What holds now: the store is
/// asked whether appends can succeed, the answer says why not, and the log tells the change and not the probes.
#[tokio::test]
async fn a_store_that_takes_no_appends_is_not_ready_and_the_log_says_so_once() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Stuck::default()));
    let server = Server::with(config(), store.clone()).await;
    assert_eq!(server.get("/health/ready").await.status, 200);
    for why in ["the file is read-only", "the disk is full"] {
        *store.why.lock().unwrap() = Some(why);
        for _ in 0..3 {
            let answer = server.get("/health/ready").await;
            assert_eq!(
                (answer.status, answer.header("retry-after")),
                (503, "1"),
                "{answer:?}"
            );
            assert_eq!(answer.problem().0, "unavailable");
            assert_eq!(answer.json()["detail"], why);
        }
    }
    assert_eq!(server.get("/health/live").await.status, 200);
    assert_eq!(logged.with("not ready").len(), 1, "{:?}", logged.with(""));
    assert!(logged.with("WARN")[0].contains("the file is read-only"));
    *store.why.lock().unwrap() = None;
    for _ in 0..3 {
        assert_eq!(server.get("/health/ready").await.status, 200);
    }
    assert_eq!(logged.with("ready again").len(), 1);
    assert!(logged.with("ERROR").is_empty(), "{:?}", logged.with(""));
}

/// Goal: where callers must prove who they are, anybody may ask whether the server is ready, and learns no reason: it
/// may name hosts and databases. The log tells it.
#[tokio::test]
async fn a_server_with_users_names_no_reason_why_it_is_not_ready() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Stuck::default()));
    let shared: Arc<dyn EventStore> = store.clone();
    let accounts = Accounts::of(Arc::clone(&shared));
    add(&accounts, "root", &["$admins"]).await;
    let world = World::over(shared, accounts, config(), access_config()).await;
    assert_eq!(world.server.get("/health/ready").await.status, 200);
    let why = "the database db-7.internal is away";
    *store.why.lock().unwrap() = Some(why);
    for authorization in [None, Some(basic("root"))] {
        let headers = authorization
            .as_deref()
            .map(|value| ("authorization", value));
        let headers = headers.as_slice();
        let answer = world.server.send("GET", "/health/ready", headers, "").await;
        assert_eq!(
            (answer.status, answer.problem().0.as_str()),
            (503, "unavailable")
        );
        let said = answer.json().to_string();
        assert_eq!(
            answer.json()["detail"],
            "the server is not ready: its log says why"
        );
        assert!(!said.contains("db-7") && !said.contains("secret"), "{said}");
    }
    assert!(
        logged.with("not ready")[0].contains(why),
        "{:?}",
        logged.with("")
    );
    *store.why.lock().unwrap() = None;
    assert_eq!(world.server.get("/health/ready").await.status, 200);
}

/// What happened: whoever had any account was told the address of the database, and which role lacks which right on
/// which table. Goal: those who look after the server are told, and the log; what Gesta itself says stays.
#[tokio::test]
async fn what_a_database_says_is_told_to_operators_and_to_the_log() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Stuck::default()));
    let shared: Arc<dyn EventStore> = store.clone();
    let accounts = Accounts::of(Arc::clone(&shared));
    for (name, groups) in [
        ("root", &["$admins"][..]),
        ("ops", &["$ops"]),
        ("user", &[]),
    ] {
        add(&accounts, name, groups).await;
    }
    let world = World::over(shared, accounts, config(), access_config()).await;
    let said = || "db-7.internal:5432: permission denied for table events".to_owned();
    let denied = Error::new(ErrorKind::Unsupported(said())).until_administrator_acts();
    for (error, status) in [
        (Error::unavailable(said()), 503),
        (ErrorKind::OutcomeUnknown(said()).into(), 504),
        (Error::corrupt(said()), 500),
        (ErrorKind::Schema(said()).into(), 500),
        (denied, 501),
    ] {
        *store.failure.lock().unwrap() = Some(error);
        for (who, is_told) in [("user", false), ("ops", true), ("root", true)] {
            let headers = [("authorization", &*basic(who))];
            let answer = world
                .server
                .send("GET", "/streams/cart-1", &headers, "")
                .await;
            assert_eq!(answer.status, status, "{answer:?}");
            let detail = answer.json()["detail"].as_str().expect("a text").to_owned();
            assert_eq!(detail.contains("db-7"), is_told, "{who}: {detail}");
            assert_eq!(
                detail == gesta_access::FOR_OPERATORS,
                !is_told,
                "{who}: {detail}"
            );
        }
    }
    assert!(!logged.with("db-7").is_empty(), "{:?}", logged.with(""));
    let off = "virtual streams are off";
    *store.failure.lock().unwrap() = Some(ErrorKind::Unsupported(off.into()).into());
    let headers = [("authorization", &*basic("user"))];
    let answer = world
        .server
        .send("GET", "/streams/cart-1", &headers, "")
        .await;
    assert_eq!(
        (answer.status, answer.json()["detail"].as_str()),
        (501, Some(off))
    );
}

/// What happened: an error that ended the deliveries of a group told its consumers what the database had said.
#[tokio::test]
async fn what_ends_the_deliveries_of_a_group_is_told_to_operators() {
    let store = Arc::new(Outer(Stuck::default()));
    let shared: Arc<dyn EventStore> = store.clone();
    let accounts = Accounts::of(Arc::clone(&shared));
    for (name, groups) in [
        ("root", &["$admins"][..]),
        ("user", &[]),
        ("ops", &["$ops"]),
    ] {
        add(&accounts, name, groups).await;
    }
    let world = World::over(shared, accounts, config(), access_config()).await;
    world.seed("a").await;
    let said = || "db-7.internal:5432: permission denied for table events".to_owned();
    let denied = Error::new(ErrorKind::Unsupported(said())).until_administrator_acts();
    for (n, error) in [
        Error::corrupt(said()),
        ErrorKind::Schema(said()).into(),
        denied,
    ]
    .into_iter()
    .enumerate()
    {
        for (who, is_told) in [("user", false), ("ops", true)] {
            let name = format!("g-{n}-{who}");
            world.group("a", &name).await;
            let target = format!("/streams/a/groups/{name}");
            let (to, caller) = (world.server.handle.local_addr(), basic(who));
            let mut raw = Raw::call(to, ("GET", &format!("{target}/consume")), &caller, "").await;
            let delivered = deliveries(&mut raw, 1).await;
            let consumer = &data(&raw, "joined")[0]["consumer"];
            *store.failure.lock().unwrap() = Some(error.clone());
            // An event that is parked is appended.
            let number = &delivered[0]["delivery"];
            let nack =
                format!(r#"{{"consumer":{consumer},"deliveries":[{number}],"action":"park"}}"#);
            let answered = world
                .status("POST", &format!("{target}/nack"), &caller, &nack)
                .await;
            assert_eq!(answered, 200);
            soon(async { while data(&raw, "error").is_empty() && raw.more().await {} }).await;
            let told = data(&raw, "error")[0].to_string();
            assert_eq!(told.contains("db-7"), is_told, "{who}: {told}");
            let instead = told.contains(gesta_access::FOR_OPERATORS);
            assert_eq!(instead, !is_told, "{who}: {told}");
            *store.failure.lock().unwrap() = None;
        }
    }
}

/// What happened: each request for what the store does not have was an error in the log, which anybody could fill so.
#[tokio::test]
async fn requests_do_not_fill_the_log_with_errors() {
    let (logged, _guard) = Logged::begin();
    let store = Arc::new(Outer(Stuck::default()));
    let server = Server::with(config(), store.clone()).await;
    let begun = std::time::Instant::now();
    for (kind, status) in [
        (
            ErrorKind::Unsupported("virtual streams are off".into()),
            501,
        ),
        (ErrorKind::Corrupt("of cart-1".into()), 500),
    ] {
        *store.failure.lock().unwrap() = Some(kind.into());
        for _ in 0..100 {
            assert_eq!(server.get("/streams/cart-1").await.status, status);
        }
    }
    let lines = logged.with("ERROR");
    let most = begun.elapsed().as_secs() + 1;
    assert!(
        lines.len() as u64 <= most,
        "{} lines: {lines:?}",
        lines.len()
    );
    assert!(
        lines.iter().all(|line| line.contains("of cart-1")),
        "{lines:?}"
    );
}

/// What happened: the metric said `full` with a synchronous standby and without one. What holds now: the metric names
/// the settings, and the metric and `/info` show the present ones.
#[tokio::test]
async fn the_durability_shown_is_that_of_now() {
    let store = Arc::new(Outer(Stuck::default()));
    let server = Server::with(config(), store.clone()).await;
    let full = |standbys: &str| Durability::Full(format!("fsync=on, {standbys}"));
    for durability in [
        full("synchronous standbys \"one\""),
        full("no synchronous standby"),
        Durability::Weakened("fsync=off".to_owned()),
    ] {
        *store.durability.lock().unwrap() = Some(durability.clone());
        let (level, detail) = (durability.name(), durability.detail());
        let shown = server.get("/info").await.json()["durability"].clone();
        assert_eq!(shown, serde_json::json!({"level": level, "detail": detail}));
        let metrics = server.get("/metrics").await.body;
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with("gesta_store_info{"));
        let line = line.expect("a line").replace("\\\"", "\"");
        let labels = format!("durability=\"{level}\",durability_settings=\"{detail}\"");
        assert!(line.contains(&labels), "{line}");
        let series = metrics.matches("gesta_store_info{").count();
        assert_eq!(series, 1, "nothing of before is left");
    }
}
