//! What operators, and clients over HTTP, are told of projections, and how they steer them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{AllFrom, AllPage, EventStore, EventStoreExt, ReadAll};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{
    API_CALLER_WAITERS_MAX, API_WAITERS_MAX, Answer, Api, Config, LAG_PAGES_MAX, OnPoison, Phase,
    Request, State, Target as AnyTarget, metrics_text,
};
use serde_json::Value;

use super::fixtures::Balances;
use super::world::{AT_ALL, World, id, parking, quick, until_phase, until_so};

/// Asks as a framework would: with the path, and the parameters decoded.
async fn ask<T: AnyTarget>(api: &Api<T>, method: &str, target: &str) -> Answer {
    ask_as(api, method, target, "somebody").await
}

async fn ask_as<T: AnyTarget>(api: &Api<T>, method: &str, target: &str, caller: &str) -> Answer {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let parameters: HashMap<String, String> = pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let request = Request {
        method,
        path,
        parameters: &parameters,
        content_type: Some("application/json; charset=utf-8"),
        caller: Some(caller),
    };
    api.answer(request).await
}

async fn json<T: AnyTarget>(api: &Api<T>, method: &str, target: &str, status: u16) -> Value {
    let answer = ask(api, method, target).await;
    assert_eq!(answer.status, status, "{method} {target}: {answer:?}");
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Goal: over HTTP whoever may do so sees each version with its lag, waits for an own write, sees and replays parked
/// events, pauses and resumes; a wrong request is told what is wrong with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projections_are_seen_and_steered_over_http() {
    let world = World::new().await;
    let config = Config {
        // It is seen to own the projection, however slow the machine is.
        lease: Duration::from_secs(3_600),
        ..parking()
    };
    let process = world.started(config, Balances).await;
    until_phase(&process, &id("balances", 1), Phase::Live).await;
    let api = Api::of(&world.store, world.target.clone());
    for amount in ["4", "no number", "5"] {
        world.append("account-1", "added", amount).await;
    }
    let written = world.append("account-2", "added", "7").await;
    let waiting = format!("/balances/wait?checkpoint={}", written.checkpoint);
    let shown = json(&api, "GET", &waiting, 200).await;
    assert_eq!(shown, serde_json::json!({"name": "balances", "version": 1}));
    let list = json(&api, "GET", "/", 200).await;
    let version = &list["projections"][0];
    assert_eq!(*version, json(&api, "GET", "/balances", 200).await);
    assert_eq!(version["state"], "running");
    assert_eq!(
        (&version["events"], &version["parked"]),
        (&2.into(), &2.into())
    );
    assert_eq!(version["lag_seconds"], 0.0);
    let parked = json(&api, "GET", "/balances/parked?limit=1", 200).await;
    assert_eq!(parked["parked"].as_array().map(Vec::len), Some(1));
    assert_eq!(parked["parked"][0]["key"], "account-1");
    let replayed = json(&api, "POST", "/balances/replay?key=account-1", 200).await;
    let done = replayed["done"].as_str().expect("an answer");
    assert!(done.contains("1 keys stay parked"), "{done}");
    let dropped = json(&api, "POST", "/balances/drop", 200).await;
    assert_eq!(dropped["done"], "2 events were dropped");
    // Paused: what is written then is not shown, and its age is the lag.
    json(&api, "POST", "/balances/pause", 200).await;
    let written = world.append("account-2", "added", "1").await;
    let waiting = format!("/balances/wait?checkpoint={}", written.checkpoint);
    let problem = json(&api, "GET", &waiting, 409).await;
    assert_eq!(problem["code"], "not_running");
    let version = json(&api, "GET", "/balances", 200).await;
    assert!(version["lag_seconds"].as_f64() > Some(0.0), "{version}");
    let metrics = ask(&api, "GET", "/metrics").await;
    assert_eq!(metrics.status, 200);
    for line in [
        "gesta_projection_paused{projection=\"balances\",version=\"1\"} 1\n",
        "gesta_projection_stopped{projection=\"balances\",version=\"1\"} 0\n",
        "gesta_projection_events{projection=\"balances\",version=\"1\"} 2\n",
        "gesta_projection_lag_positions{projection=\"balances\",version=\"1\"} 1\n",
        "# TYPE gesta_projection_lag_seconds gauge\n",
    ] {
        assert!(metrics.body.contains(line), "{line} in {}", metrics.body);
    }
    json(&api, "POST", "/balances/resume", 200).await;
    let reset = json(&api, "POST", "/balances/reset", 200).await;
    assert_eq!(reset["done"], "it was reset");
    json(&api, "GET", &waiting, 200).await;
    let active = json(&api, "POST", "/balances/retire?version=1", 400).await;
    let detail = active["detail"].as_str().expect("a reason");
    assert!(detail.contains("it is the active version"), "{detail}");
    process.shutdown().await;
    // Nobody runs it: it does not come so far in time.
    let written = world.append("account-2", "added", "1").await;
    let checkpoint = &written.checkpoint;
    let late = format!("/balances/wait?checkpoint={checkpoint}&timeout_ms=0");
    let problem = json(&api, "GET", &late, 504).await;
    assert_eq!(
        (&problem["code"], &problem["positions"]),
        (&"timed_out".into(), &1.into())
    );
    let reports = world.control().reports(Some(&*world.store)).await;
    let text = metrics_text(&reports.expect("reports"));
    let deserted = "gesta_projection_deserted{projection=\"balances\",version=\"1\"} 1\n";
    assert!(text.contains(deserted), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_told_what_is_wrong() {
    let world = World::new().await;
    let process = world.process(quick()).view(Balances).start().await;
    let api = Api::of(&world.store, world.target.clone());
    for (method, target, status, why) in [
        ("GET", "/nothing", 404, "there is no projection nothing"),
        (
            "GET",
            "/balances?version=2",
            404,
            "there is no projection balances v2",
        ),
        ("GET", "/balances?version=x", 400, "found \"x\""),
        ("GET", "/balances?colour=x", 400, "no parameter \"colour\""),
        (
            "GET",
            "/balances/wait",
            400,
            "checkpoint says what is waited for",
        ),
        ("GET", "/balances/wait?checkpoint=x", 400, "checkpoint"),
        ("GET", "/balances/parked?limit=0", 400, "from 1 to 1000"),
        (
            "POST",
            "/balances/switch",
            400,
            "version says what to switch",
        ),
        (
            "POST",
            "/balances/reset?timeout_ms=60001",
            400,
            "from 0 to 60000",
        ),
        ("POST", "/balances/explode", 404, "no such path"),
        ("GET", "/a/b/c", 404, "no such path"),
        ("DELETE", "/balances", 405, "DELETE is not answered here"),
    ] {
        let problem = json(&api, method, target, status).await;
        let detail = problem["detail"].as_str().expect("a reason");
        assert!(detail.contains(why), "{target}: {detail}");
        assert_eq!(problem["status"], status);
    }
    let strange = World::new().await.head().await;
    let strange = format!("/balances/wait?checkpoint={strange}");
    let problem = json(&api, "GET", &strange, 400).await;
    let detail = problem["detail"].as_str().expect("a reason");
    assert!(
        detail.contains("is not of the events of this store"),
        "{detail}"
    );
    // One of this store, which does not reach it.
    let further = world.checkpoint_at(&world.head().await, 10);
    let further = format!("/balances/wait?checkpoint={further}");
    json(&api, "GET", &further, 400).await;
    let stopped = tokio::time::timeout(AT_ALL, process.expect("started").shutdown());
    stopped.await.expect("in time");
}

/// What happened: after a restore of the store a version with a checkpoint of before made the list and the metrics fail
/// as a whole, and with them the alert that it has stopped. Now its lag alone is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_of_another_store_hides_no_other() {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    let events = world.store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(MemoryConfig::default(), events.into_iter().take(10));
    world.store = Arc::new(restored.expect("whole"));
    let process = world.process(quick()).view(Balances);
    let process = process.view_as("others", Balances).start().await;
    let process = process.expect("started");
    until_phase(&process, &id("balances", 1), Phase::Stopped).await;
    until_phase(&process, &id("others", 1), Phase::Live).await;
    let head = world.head().await;
    let others = process.wait_for("others", &head, AT_ALL).await;
    others.expect("it comes to the end");
    process.shutdown().await;
    let api = Api::of(&world.store, world.target.clone());
    let list = json(&api, "GET", "/", 200).await;
    let (stopped, other) = (&list["projections"][0], &list["projections"][1]);
    assert_eq!(
        (&stopped["name"], &stopped["state"]),
        (&"balances".into(), &"stopped".into())
    );
    assert!(stopped["lag_seconds"].is_null() && stopped["lag_positions"].is_null());
    assert!(stopped["lag_unknown"].is_string(), "{stopped}");
    assert_eq!(
        (&other["lag_seconds"], &other["lag_unknown"]),
        (&0.0.into(), &Value::Null)
    );
    assert_eq!(*stopped, json(&api, "GET", "/balances", 200).await);
    let metrics = ask(&api, "GET", "/metrics").await;
    assert_eq!(metrics.status, 200);
    for line in [
        "gesta_projection_stopped{projection=\"balances\",version=\"1\"} 1\n",
        "gesta_projection_lag_unknown{projection=\"balances\",version=\"1\"} 1\n",
        "gesta_projection_lag_unknown{projection=\"others\",version=\"1\"} 0\n",
        "gesta_projection_lag_seconds{projection=\"others\",version=\"1\"} 0\n",
    ] {
        assert!(metrics.body.contains(line), "{line} in {}", metrics.body);
    }
    let unknown = "gesta_projection_lag_seconds{projection=\"balances\"";
    assert!(!metrics.body.contains(unknown), "{}", metrics.body);
}

/// Goal: the rules for alerts of the guide know a version that has never applied an event. What happened: a version
/// that never got its first batch through was in no alert, for a series that one of them compares was not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_know_a_version_without_events() {
    let world = World::new().await;
    world.comes_right(OnPoison::Stop).await;
    let api = Api::of(&world.store, world.target.clone());
    let metrics = ask(&api, "GET", "/metrics").await.body;
    let guide = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/guides/read-models.md"
    );
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let rules = guide.lines().filter(|line| line.starts_with("  expr: "));
    let mut known = 0;
    for rule in rules {
        let is_of_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let names = rule.split(|c| !is_of_name(c));
        for name in names.filter(|name| name.starts_with("gesta_projection_")) {
            let series = format!("\n{name}{{projection=\"balances\",version=\"1\"}} ");
            assert!(metrics.contains(&series), "{name} in {metrics}");
            known += 1;
        }
    }
    assert!(known >= 6, "{known} series in the rules of the guide");
}

/// A store in which no end of a read with a filter is in sight, and how often it was read.
struct Endless(Arc<dyn EventStore>, AtomicUsize);

#[async_trait]
impl Wrapper for Endless {
    fn inner(&self) -> &dyn EventStore {
        &*self.0
    }

    async fn read_all(&self, request: ReadAll) -> gesta_core::Result<AllPage> {
        let reads = self.1.fetch_add(1, Ordering::SeqCst);
        assert!(reads < 1_000, "it reads without end");
        let AllFrom::Checkpoint(next) = request.from else {
            panic!("a lag is looked for after a checkpoint")
        };
        Ok(AllPage {
            events: Vec::new(),
            next,
            end: false,
        })
    }
}

/// Goal: what it costs to show a version that stands still is bounded, whatever its filter; what is not known then is
/// said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_is_looked_for_in_so_many_pages() {
    let world = World::new().await;
    world.append_many(3).await;
    world.comes_right(OnPoison::Stop).await;
    world.append_many(2).await;
    let endless = Outer(Endless(Arc::clone(&world.store), AtomicUsize::new(0)));
    let reports = world.control().reports(Some(&endless)).await;
    let report = &reports.expect("reports")[0];
    assert_eq!(endless.0.1.load(Ordering::SeqCst), LAG_PAGES_MAX);
    assert_eq!((report.lag_seconds, report.lag_positions), (None, Some(2)));
    let why = report.lag_unknown.as_deref().expect("a reason");
    assert!(
        why.contains("no event that matches was found in 20 pages"),
        "{why}"
    );
}

/// Goal: so many requests wait, and no more, and one caller leaves room for others; one that is given up makes room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_so_many_requests_wait() {
    let world = World::new().await;
    world.comes_right(OnPoison::Stop).await;
    // Nobody runs it: it never comes so far.
    let written = world.append("account-1", "added", "1").await;
    let api = Api::of(&world.store, world.target.clone());
    let wait = format!("/balances/wait?checkpoint={}", written.checkpoint);
    let (long, short) = (
        format!("{wait}&timeout_ms=60000"),
        format!("{wait}&timeout_ms=0"),
    );
    assert_eq!(ask(&api, "GET", &short).await.status, 504);
    let mut waiting = tokio::task::JoinSet::new();
    let wait_as = |waiting: &mut tokio::task::JoinSet<Answer>, caller: usize| {
        let (api, long) = (api.clone(), long.clone());
        waiting.spawn(async move { ask_as(&api, "GET", &long, &caller.to_string()).await });
    };
    for _ in 0..=API_CALLER_WAITERS_MAX {
        wait_as(&mut waiting, 0);
    }
    let refused = waiting.join_next().await.expect("one");
    assert_eq!(
        refused.expect("answered").status,
        503,
        "the caller has enough"
    );
    assert_eq!(
        ask(&api, "GET", &short).await.status,
        504,
        "others may wait"
    );
    for caller in API_CALLER_WAITERS_MAX..=API_WAITERS_MAX {
        wait_as(&mut waiting, caller / API_CALLER_WAITERS_MAX);
    }
    // All wait but one.
    let refused = waiting.join_next().await.expect("one");
    assert_eq!(refused.expect("answered").status, 503);
    // Eight callers have all places; one who has none gets one of theirs.
    json(&api, "GET", &short, 504).await;
    let gave_way = waiting.join_next().await.expect("one");
    let gave_way = gave_way.expect("answered");
    assert_eq!(gave_way.status, 503);
    let problem: Value = serde_json::from_str(&gave_way.body).expect("JSON");
    assert_eq!(problem["code"], "overloaded");
    let detail = problem["detail"].as_str().expect("a reason");
    assert!(detail.contains("256 requests wait already"), "{detail}");
    // What does not wait is answered.
    json(&api, "GET", "/balances", 200).await;
    waiting.abort_all();
    let has_room = async || ask(&api, "GET", &short).await.status == 504;
    until_so(has_room, "there is room again").await;
}

/// Goal: no page of another site makes a browser give orders, and clients that wait learn nothing of the target.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_need_a_media_type_and_clients_no_texts_of_the_target() {
    let world = World::new().await;
    world.comes_right(OnPoison::Stop).await;
    let written = world.append("account-1", "added", "1").await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let api = Api::of(&world.store, faulty.clone());
    for content_type in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
    ] {
        let request = Request {
            method: "POST",
            path: "/balances/pause",
            parameters: &HashMap::new(),
            content_type,
            caller: None,
        };
        assert_eq!(api.answer(request).await.status, 415, "{content_type:?}");
    }
    let version = json(&api, "GET", "/balances", 200).await;
    assert_eq!(version["state"], "running");
    let stopped = world.control();
    let why = Some("SELECT secret FROM rows");
    let balances = id("balances", 1);
    let set = world.target.set_state(&balances, State::Stopped, why);
    assert!(set.await.expect("set"));
    let shown = stopped.active("balances").await.expect("shown");
    assert_eq!(shown.error.as_deref(), why);
    let wait = format!(
        "/balances/wait?checkpoint={}&timeout_ms=0",
        written.checkpoint
    );
    let problem = json(&api, "GET", &wait, 409).await;
    assert!(
        !problem["detail"].to_string().contains("secret"),
        "{problem}"
    );
}

/// Goal: however many requests wait, one look at the target is under way, and its answer is for all who asked before
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_share_their_looks() {
    let world = World::new().await;
    world.comes_right(OnPoison::Stop).await;
    let written = world.append("account-1", "added", "1").await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let api = Api::of(&world.store, faulty.clone());
    let wait = format!(
        "/balances/wait?checkpoint={}&timeout_ms=0",
        written.checkpoint
    );
    let looks = faulty.looks();
    faulty.set_hung(true);
    let one = || ask(&api, "GET", &wait);
    let unhung = async { faulty.set_hung(false) };
    let (a, b, c, d, e, ()) = tokio::join!(one(), one(), one(), one(), one(), unhung);
    assert_eq!([a, b, c, d, e].map(|answer| answer.status), [504; 5]);
    // The one under way when most of them came, and one for all of these.
    assert_eq!(faulty.looks() - looks, 2);
}

/// What happened: each request that waits searched the store for itself, a million positions after each step of the
/// version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_share_their_searches() {
    let world = World::new().await;
    world.append_many(3).await;
    world.comes_right(OnPoison::Stop).await;
    let written = world.append("account-1", "added", "1").await;
    let endless = Arc::new(Outer(Endless(
        Arc::clone(&world.store),
        AtomicUsize::new(0),
    )));
    let store: Arc<dyn EventStore> = endless.clone();
    let api = Api::of(&store, world.target.clone());
    let wait = format!(
        "/balances/wait?checkpoint={}&timeout_ms=0",
        written.checkpoint
    );
    let mut waiting = tokio::task::JoinSet::new();
    for caller in 0..100 {
        let (api, wait) = (api.clone(), wait.clone());
        waiting.spawn(async move { ask_as(&api, "GET", &wait, &caller.to_string()).await });
    }
    while let Some(answer) = waiting.join_next().await {
        let answer = answer.expect("answered");
        assert_eq!(answer.status, 504, "{answer:?}");
    }
    assert_eq!(endless.0.1.load(Ordering::SeqCst), LAG_PAGES_MAX);
}

/// A store that cannot be read.
struct Away(Arc<dyn EventStore>);

#[async_trait]
impl Wrapper for Away {
    fn inner(&self) -> &dyn EventStore {
        &*self.0
    }

    async fn read_all(&self, _: ReadAll) -> gesta_core::Result<AllPage> {
        let why = "db1:5432: error connecting to server: Connection refused";
        Err(gesta_core::Error::unavailable(why))
    }
}

/// What happened: clients that wait were told the address of the event store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_wait_learn_nothing_of_the_store() {
    let world = World::new().await;
    world.append_many(3).await;
    world.comes_right(OnPoison::Stop).await;
    let written = world.append("account-1", "added", "1").await;
    let store: Arc<dyn EventStore> = Arc::new(Outer(Away(Arc::clone(&world.store))));
    let api = Api::of(&store, world.target.clone());
    let wait = format!("/balances/wait?checkpoint={}", written.checkpoint);
    let problem = json(&api, "GET", &wait, 503).await;
    assert_eq!(problem["code"], "store_unavailable");
    assert!(!problem.to_string().contains("db1"), "{problem}");
    json(&api, "GET", "/balances/wait?checkpoint=wrong", 400).await;
}

/// Goal: no projection hides behind the path of the metrics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_projection_is_named_metrics() {
    let world = World::new().await;
    let process = world.process(quick()).view_as("metrics", Balances);
    let error = process.start().await.expect_err("refused").to_string();
    assert!(error.contains("cannot be named metrics"), "{error}");
}
