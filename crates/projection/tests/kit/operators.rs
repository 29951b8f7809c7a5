//! What operators, and clients over HTTP, are told of projections, and how they steer them.

use std::collections::HashMap;
use std::time::Duration;

use gesta_projection::{Answer, Api, Config, Phase, metrics_text};
use serde_json::Value;

use super::fixtures::Balances;
use super::poison::parking;
use super::world::{AT_ALL, World, id, quick, until_phase};
use crate::flavour::Target;

/// Asks as a framework would: with the path, and the parameters decoded.
async fn ask(api: &Api<Target>, method: &str, target: &str) -> Answer {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let parameters: HashMap<String, String> = pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    api.answer(method, path, &parameters).await
}

async fn json(api: &Api<Target>, method: &str, target: &str, status: u16) -> Value {
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
    let process = world.process(config).view(Balances).start().await;
    let process = process.expect("started");
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
    let stopped = tokio::time::timeout(AT_ALL, process.expect("started").shutdown());
    stopped.await.expect("in time");
}
