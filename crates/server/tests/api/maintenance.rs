//! Tests what administrators have a server do with its store: who may ask, what is told meanwhile, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::backend::RunMode;
use gesta_core::{ErrorKind, Result};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Maintenance, OnProgress, Registry, VirtualStreamsCall};
use gesta_wire::maintenance::{Progress, Scavenged, Verified, VirtualStreams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::access::world::{World, access_config, add, basic};
use crate::client::{Raw, Server, config, soon};
use crate::logged::Logged;

/// A store whose checks end when the test says so.
#[derive(Default)]
struct Checked(Arc<State>);

struct State {
    /// A permit lets one check end.
    ends: Semaphore,
    /// How many checks are under way, or switches that hang.
    running: AtomicUsize,
    /// True if switching virtual streams hangs.
    hangs: AtomicBool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            ends: Semaphore::new(0),
            running: AtomicUsize::new(0),
            hangs: AtomicBool::new(false),
        }
    }
}

/// Counts a check as under way until it is dropped.
struct Running(Arc<State>);

impl Running {
    fn new(state: &Arc<State>) -> Self {
        state.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Checked {
    async fn until_running(&self, count: usize) {
        soon(async {
            while self.0.running.load(Ordering::SeqCst) != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

impl Maintenance for Checked {
    fn verify(&self, mut told: OnProgress) -> BoxFuture<'static, Result<Verified>> {
        let state = Arc::clone(&self.0);
        async move {
            let running = Running::new(&state);
            told(Progress {
                events: 7,
                streams: 0,
            });
            let _ended = running.0.ends.acquire().await.expect("open");
            Ok(Verified {
                healthy: true,
                events: 9,
                findings_total: 0,
                findings: Vec::new(),
            })
        }
        .boxed()
    }

    fn scavenge(&self, mode: RunMode, _: OnProgress) -> BoxFuture<'static, Result<Scavenged>> {
        let outcome = match mode {
            RunMode::Real => Err(ErrorKind::Unsupported("no right".into()).into()),
            RunMode::Dry => Ok(Scavenged {
                dry_run: true,
                streams: 3,
                streams_changed: 2,
                streams_unreadable: 1,
                events: 5,
                payload_bytes: 70,
            }),
        };
        async { outcome }.boxed()
    }

    fn virtual_streams(
        &self,
        call: VirtualStreamsCall,
    ) -> BoxFuture<'static, Result<VirtualStreams>> {
        let status = VirtualStreams {
            on: call == VirtualStreamsCall::SwitchOn,
            position: 4,
            end: 6,
        };
        let state = Arc::clone(&self.0);
        async move {
            if state.hangs.load(Ordering::SeqCst) {
                let _running = Running::new(&state);
                std::future::pending::<()>().await;
            }
            Ok(status)
        }
        .boxed()
    }
}

async fn start(checked: &Arc<Checked>) -> Server {
    let bound = gesta_server::bind(config()).await.expect("a free port");
    let bound = bound.with_maintenance(Arc::clone(checked) as _);
    Server::of(bound.serve(Arc::new(MemoryStore::new()), Registry::default()))
}

const VERIFY: &str = "POST /admin/verify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                      Content-Length: 0\r\nConnection: close\r\n\r\n";

/// Returns the last line of an answer.
fn last(body: &str) -> Value {
    let line = body.lines().last().expect("a line");
    serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {body}"))
}

/// Goal: a check tells how far it is, another one is refused meanwhile, and the result comes last.
#[tokio::test]
async fn a_check_tells_how_far_it_is_and_is_the_only_one() {
    let checked = Arc::new(Checked::default());
    let server = start(&checked).await;
    let mut raw = server.raw(VERIFY).await;
    raw.until("{\"progress\":{\"events\":7,\"streams\":0}}\n")
        .await;
    let second = server.json("POST", "/admin/scavenge", "").await;
    assert_eq!((second.status, &*second.problem().0), (503, "overloaded"));
    checked.0.ends.add_permits(1);
    let whole = raw.rest().await;
    assert!(
        whole.contains(
            "{\"done\":{\"healthy\":true,\"events\":9,\"findings_total\":0,\"findings\":[]}}\n"
        ),
        "{whole}"
    );
    checked.until_running(0).await;
}

/// Goal: a check whose caller has gone ends, and makes room for the next one; so does one when the server stops.
#[tokio::test]
async fn a_check_ends_with_its_caller_and_with_the_server() {
    let checked = Arc::new(Checked::default());
    let server = start(&checked).await;
    let raw = server.raw(VERIFY).await;
    checked.until_running(1).await;
    drop(raw);
    checked.until_running(0).await;

    let mut raw: Raw = server.raw(VERIFY).await;
    raw.until("progress").await;
    soon(server.handle.shutdown()).await;
    let whole = raw.rest().await;
    assert!(
        whole.contains("{\"problem\":{") && whole.contains("the server is stopping"),
        "{whole}"
    );
}

/// Goal: what cannot be done is the last line, and what was counted is a document.
#[tokio::test]
async fn a_scavenge_tells_its_result_or_why_there_is_none() {
    let server = start(&Arc::default()).await;
    let counted = server
        .json("POST", "/admin/scavenge?dry_run=true", "")
        .await;
    assert_eq!(
        (counted.status, counted.header("content-type")),
        (200, "application/x-ndjson")
    );
    assert_eq!(
        last(&counted.body)["done"],
        json!({"dry_run": true, "streams": 3, "streams_changed": 2, "streams_unreadable": 1, "events": 5,
               "payload_bytes": 70})
    );
    let refused = server.json("POST", "/admin/scavenge", "").await;
    let problem = last(&refused.body)["problem"].clone();
    assert_eq!(
        (&problem["type"], &problem["detail"]),
        (&json!("urn:gesta:problem:unsupported"), &json!("no right"))
    );
    for (target, headers, status) in [
        ("/admin/scavenge", &[][..], 415),
        ("/admin/verify", &[], 415),
        (
            "/admin/scavenge?dry_run=1",
            &[("content-type", "application/json")],
            400,
        ),
        (
            "/admin/verify?x=1",
            &[("content-type", "application/json")],
            400,
        ),
    ] {
        let answer = server.send("POST", target, headers, "").await;
        assert_eq!(answer.status, status, "{target}");
    }
}

#[tokio::test]
async fn virtual_streams_are_switched_through_a_server() {
    let server = start(&Arc::default()).await;
    let target = "/admin/virtual-streams";
    let status = |on: bool| json!({"on": on, "position": 4, "end": 6});
    assert_eq!(server.get(target).await.json(), status(false));
    for (body, on) in [(r#"{"on":true}"#, true), (r#"{"on":false}"#, false)] {
        let switched = server.json("PUT", target, body).await;
        assert_eq!(switched.json(), status(on), "{body}");
    }
    for wrong in ["", "{}", r#"{"on":1}"#, r#"{"on":true,"more":1}"#] {
        assert_eq!(
            server.json("PUT", target, wrong).await.status,
            400,
            "{wrong}"
        );
    }
    // Without anybody who does it.
    let bare = Server::start().await;
    assert_eq!(bare.get(target).await.status, 501);
}

/// Goal: where callers must say who they are, administrators alone have the store checked.
#[tokio::test]
async fn administrators_alone_have_a_store_checked() {
    let store: Arc<dyn gesta_core::EventStore> = Arc::new(MemoryStore::new());
    let accounts = gesta_access::Accounts::of(Arc::clone(&store));
    add(&accounts, "root", &["$admins"]).await;
    add(&accounts, "ops", &["$ops"]).await;
    let config: Config = config();
    let world = World::over(store, accounts, config, access_config()).await;
    for (who, status) in [("ops", 403), ("root", 501)] {
        for target in ["/admin/verify", "/admin/scavenge"] {
            let found = world.status("POST", target, &basic(who), "").await;
            assert_eq!(found, status, "{who} {target}");
        }
    }
}

/// Starts a server with two administrators.
async fn guarded(checked: &Arc<Checked>) -> (Server, gesta_access::Accounts) {
    let store: Arc<dyn gesta_core::EventStore> = Arc::new(MemoryStore::new());
    let accounts = gesta_access::Accounts::of(Arc::clone(&store));
    add(&accounts, "root", &["$admins"]).await;
    add(&accounts, "helper", &["$admins"]).await;
    let access = gesta_access::Access::start(Arc::clone(&store), access_config());
    soon(access.loaded()).await;
    let bound = gesta_server::bind(config()).await.expect("a free port");
    let bound = bound
        .with_access(access)
        .with_maintenance(Arc::clone(checked) as _);
    let server = Server::of(bound.serve(store, Registry::default()));
    (server, accounts)
}

/// What happened: an administrator who switched virtual streams and closed the connection at once left no line in the
/// audit log. Goal: there is one.
#[tokio::test]
async fn a_switch_whose_caller_leaves_is_in_the_audit_log() {
    let (logged, _guard) = Logged::begin();
    let checked = Arc::new(Checked::default());
    let (server, _accounts) = guarded(&checked).await;
    checked.0.hangs.store(true, Ordering::SeqCst);
    let body = r#"{"on":true}"#;
    let raw = server
        .raw(&format!(
            "PUT /admin/virtual-streams HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            basic("root"),
            body.len()
        ))
        .await;
    checked.until_running(1).await;
    drop(raw);
    checked.until_running(0).await;
    soon(async {
        while logged.with("the caller left").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let lines = logged.with("the caller left");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("virtual streams on"), "{lines:#?}");
    assert!(lines[0].contains(r#"who="root""#), "{lines:#?}");
}

/// Goal: work ends when its caller may no longer do it, or has gone, and the audit log tells both ends.
#[tokio::test]
async fn a_check_ends_with_the_rights_of_its_caller_and_the_audit_log_tells_each_end() {
    let (logged, _guard) = Logged::begin();
    let checked = Arc::new(Checked::default());
    let (server, accounts) = guarded(&checked).await;
    let verify = VERIFY.replace(
        "Host: localhost",
        &format!("Host: localhost\r\nAuthorization: {}", basic("helper")),
    );
    let ended = |text: &str| {
        let lines = logged.with("gesta::audit");
        let of_verify = lines
            .iter()
            .filter(|line| line.contains(r#"what="verify""#));
        of_verify.filter(|line| line.contains(text)).count()
    };

    let raw = server.raw(&verify).await;
    checked.until_running(1).await;
    drop(raw);
    checked.until_running(0).await;
    soon(async {
        while ended("its caller has gone") != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;

    let mut raw = server.raw(&verify).await;
    raw.until("progress").await;
    accounts
        .set_groups("helper", Vec::new())
        .await
        .expect("no administrator any more");
    checked.until_running(0).await;
    let whole = raw.rest().await;
    assert!(whole.contains("urn:gesta:problem:forbidden"), "{whole}");
    assert_eq!(ended(r#"who="helper""#), 2);
}
