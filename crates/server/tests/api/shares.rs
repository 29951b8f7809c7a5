//! Tests that nobody can take what others need: one user beside nine others, and callers who have not proved who they
//! are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_access::{Accounts, Scope};
use gesta_core::{Append, Appended, EventStore, ReadStream, Result, StreamPage};
use gesta_kit::depth::{self, Depth};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use gesta_server::Config;
use http_body_util::{BodyExt, Empty, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::access::world::{World, access_config, add};
use crate::client::{Raw, config, soon};

/// The stream whose appends and reads last for ever.
const SLOW: &str = "slow";

/// A store in which whoever uses the stream [`SLOW`] waits for ever.
struct Slow(MemoryStore);

#[async_trait]
impl Wrapper for Slow {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        if request.streams.iter().any(|of| of.stream.as_str() == SLOW) {
            std::future::pending::<()>().await;
        }
        self.0.append(request).await
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        if request.stream.as_str() == SLOW {
            std::future::pending::<()>().await;
        }
        self.0.read_stream(request).await
    }
}

/// What all callers use together.
#[derive(Debug, Clone, Copy)]
enum Resource {
    Requests,
    Subscriptions,
    /// Bytes in flight, by bodies that lack their last byte.
    Bytes,
    /// Turns to read.
    Reads,
}

const RESOURCES: [Resource; 4] = [
    Resource::Requests,
    Resource::Subscriptions,
    Resource::Bytes,
    Resource::Reads,
];
/// How often the one user asks for it: more often than there are places.
const ASKS: usize = 60;
const NINE: usize = 9;

impl Resource {
    /// Returns the request with which the one user takes of it.
    fn request(self, authorization: &str) -> String {
        let head = |method: &str, target: &str, more: &str| {
            format!(
                "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n{more}\r\n"
            )
        };
        let typed = |length: usize| {
            format!("Content-Type: application/json\r\nContent-Length: {length}\r\n")
        };
        let event = r#"{"events":[{"type":"T","data":1}]}"#;
        match self {
            Self::Requests => head("POST", "/streams/slow", &typed(event.len())) + event,
            Self::Subscriptions => head("GET", "/all/subscribe", ""),
            Self::Bytes => head("POST", "/streams/cut", &typed(200_001)) + &" ".repeat(200_000),
            Self::Reads => head("GET", "/streams/slow", ""),
        }
    }

    /// Returns the metric that tells that the user has as much as they can get, and its least value.
    fn is_taken(self) -> (&'static str, u64) {
        match self {
            // Of 40 places, the user has half.
            Self::Requests => (
                "gesta_share_refused_total{resource=\"requests\",bound=\"caller\"}",
                40,
            ),
            Self::Subscriptions => (
                "gesta_share_refused_total{resource=\"subscriptions\",bound=\"caller\"}",
                1,
            ),
            // How much of each body has come when there is no more room is chance.
            Self::Bytes => (
                "gesta_share_refused_total{resource=\"bytes\",bound=\"caller\"}",
                1,
            ),
            // Of eight turns the user has four. Of their twenty requests the others wait.
            Self::Reads => ("gesta_share_waiting{resource=\"reads\"}", 16),
        }
    }
}

async fn world() -> (World, String, Vec<String>) {
    let store: Arc<dyn EventStore> = Arc::new(Outer(Slow(MemoryStore::new())));
    let accounts = Accounts::of(Arc::clone(&store));
    add(&accounts, "root", &["$admins"]).await;
    add(&accounts, "one", &[]).await;
    for n in 0..NINE {
        add(&accounts, &format!("other-{n}"), &[]).await;
    }
    let bounds = Config {
        requests_in_flight_max: 40,
        subscriptions_max: 40,
        bytes_in_flight_max: 1024 * 1024,
        reads_in_flight_max: 8,
        ..config()
    };
    let world = World::over(store, accounts, bounds, access_config()).await;
    let scopes = &[Scope::Read, Scope::Append];
    let one = world.token("one", scopes, &[]).await;
    let mut others = Vec::new();
    for n in 0..NINE {
        others.push(world.token(&format!("other-{n}"), scopes, &[]).await);
    }
    (world, one, others)
}

async fn metrics_have(world: &World, authorization: &str, (metric, least): (&str, u64)) {
    soon(async {
        loop {
            let headers = &[("authorization", authorization)];
            let answer = world.server.send("GET", "/metrics", headers, "").await;
            let mut lines = answer.body.lines();
            let value =
                lines.find_map(|line| line.strip_prefix(metric)?.trim().parse::<u64>().ok());
            if value.is_some_and(|value| value >= least) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// One user appends, reads and subscribes. Returns the subscription.
async fn works(world: &World, n: usize, authorization: &str) -> Raw {
    let (target, event) = (
        format!("/streams/quick-{n}"),
        r#"{"events":[{"type":"T","data":1}]}"#,
    );
    assert_eq!(
        world.status("POST", &target, authorization, event).await,
        201,
        "append of {n}"
    );
    assert_eq!(
        world.status("GET", &target, authorization, "").await,
        200,
        "read of {n}"
    );
    let subscribe = format!("{target}/subscribe");
    let mut subscription = world.say("GET", &subscribe, authorization, "").await;
    subscription.until("caught_up").await;
    subscription
}

/// How long the appends and reads of nine users take, all at once, the slowest of a hundred last.
async fn durations(world: &World, others: &[String]) -> Vec<Duration> {
    let each = others.iter().enumerate().map(|(n, other)| async move {
        let mut found = Vec::new();
        for _ in 0..100 {
            let begun = Instant::now();
            let (target, event) = (
                format!("/streams/quick-{n}"),
                r#"{"events":[{"type":"T","data":1}]}"#,
            );
            assert_eq!(world.status("POST", &target, other, event).await, 201);
            let last = format!("{target}?direction=backwards&limit=1");
            assert_eq!(world.status("GET", &last, other, "").await, 200);
            found.push(begun.elapsed());
        }
        found
    });
    let mut all: Vec<_> = futures::future::join_all(each).await.concat();
    all.sort_unstable();
    all
}

/// What happened: the bounds were for all callers together, so that one token took all subscriptions, all bytes in
/// flight or all turns, and everybody else was refused for as long as it liked. Goal: whatever of these one user takes,
/// each of nine others appends, reads and subscribes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_one_user_takes_nine_others_work() {
    for resource in RESOURCES {
        let (world, one, others) = world().await;
        let root = world.token("root", &[Scope::Admin], &[]).await;
        let alone = match Depth::from_environment() {
            Depth::Deep => Some(durations(&world, &others).await),
            Depth::Quick => None,
        };
        let request = resource.request(&one);
        let mut taken = Vec::new();
        for _ in 0..ASKS {
            taken.push(world.server.raw(&request).await);
        }
        metrics_have(&world, &root, resource.is_taken()).await;
        let works = others
            .iter()
            .enumerate()
            .map(|(n, other)| works(&world, n, other));
        let held = futures::future::join_all(works).await;
        if let Some(alone) = alone {
            let beside = durations(&world, &others).await;
            let p99 = |all: &[Duration]| all[all.len() * 99 / 100];
            let sum = |all: &[Duration]| all.iter().sum::<Duration>();
            let of = format!("{resource:?} taken by one user: ");
            depth::in_time(
                &(of.clone() + "p99 of nine"),
                p99(&beside),
                p99(&alone) * 10,
            );
            depth::in_time(&(of + "time of nine"), sum(&beside), sum(&alone) * 5 / 4);
        }
        drop((held, taken));
        world.server.handle.shutdown().await;
    }
}

/// What happened: each caller could take half of what was left and keep it, so that a dozen of them, one after the
/// other, took all subscriptions for ever. Goal: whoever has few gets another; whoever has most is told why their
/// newest ends.
#[tokio::test]
async fn who_keeps_most_subscriptions_gives_way() {
    let (world, one, others) = world().await;
    let root = world.token("root", &[Scope::Admin], &[]).await;
    let (last, others) = others.split_last().expect("nine");
    let mut first = Vec::new();
    for _ in 0..20 {
        let mut subscription = world.say("GET", "/all/subscribe", &one, "").await;
        subscription.until("caught_up").await;
        first.push(subscription);
    }
    let mut held = Vec::new();
    for other in others {
        for _ in 0..20 {
            let subscription = world.say("GET", "/all/subscribe", other, "").await;
            held.push(subscription);
        }
    }
    let refused = held.iter().filter(|other| other.status() == 503).count();
    assert!(refused > 0, "all are taken");
    let mut few = world.say("GET", "/all/subscribe", last, "").await;
    assert_eq!(few.status(), 200);
    few.until("caught_up").await;
    let told = first.pop().expect("twenty").rest().await;
    assert!(
        told.contains("event: error")
            && told.contains("who had most, gave up the newest of theirs"),
        "{told}"
    );
    let gave_way = "gesta_share_gave_way_total{resource=\"subscriptions\"}";
    metrics_have(&world, &root, (gave_way, 1)).await;
    let event = r#"{"events":[{"type":"T","data":1}]}"#;
    assert_eq!(world.status("POST", "/streams/new", last, event).await, 201);
    first[0].until("\"new\"").await;
}

/// A connection from another address of this machine.
async fn connect_from(host: u8, world: &World) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from = ([127, 0, 0, host], 0).into();
    socket.bind(from).expect("an address of this machine");
    let connected = soon(socket.connect(world.server.handle.local_addr())).await;
    connected.expect("a connection")
}

/// Returns what is left to read of a connection until the server closes it.
async fn rest_of(mut socket: TcpStream) -> String {
    let mut found = Vec::new();
    // A connection that was closed while a request was on its way is reset.
    let _ = soon(socket.read_to_end(&mut found)).await;
    String::from_utf8_lossy(&found).into_owned()
}

/// A server that takes few connections, and the token of a user.
async fn few_connections(connections_max: usize) -> (World, String) {
    let bounds = Config {
        connections_max,
        ..config()
    };
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    add(&accounts, "root", &["$admins"]).await;
    add(&accounts, "user", &[]).await;
    let world = World::over(store, accounts, bounds, access_config()).await;
    let user = world.token("user", &[Scope::Read, Scope::Append], &[]);
    let user = user.await;
    (world, user)
}

/// A connection from an address on which a user was answered.
async fn known_from(host: u8, world: &World, user: &str) -> TcpStream {
    let mut socket = connect_from(host, world).await;
    let head =
        format!("GET /streams/none HTTP/1.1\r\nHost: localhost\r\nAuthorization: {user}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.expect("sent");
    let mut first = [0; 12];
    soon(socket.read_exact(&mut first))
        .await
        .expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 404");
    socket
}

/// Reads from a connection until this was read.
async fn read_until(socket: &mut TcpStream, wanted: &str) -> String {
    let mut found = String::new();
    while !found.contains(wanted) {
        let mut part = [0; 1024];
        let n = soon(socket.read(&mut part)).await.expect("it lives");
        assert!(n > 0, "it lives: {found}");
        found.push_str(&String::from_utf8_lossy(&part[..n]));
    }
    found
}

/// What happened: addresses that held their connections took all of them for ever, one after the other. Goal: an
/// address with few gets another, of the address with most; users who have come already are not displaced by strangers,
/// also if their first call is not answered yet.
#[tokio::test]
async fn who_keeps_most_connections_gives_way() {
    let (world, user) = few_connections(16).await;
    let root = world.token("root", &[Scope::Admin], &[]).await;
    let mut known = Vec::new();
    for _ in 0..3 {
        known.push(known_from(2, &world, &user).await);
    }
    // The last byte of their bodies is missing.
    let body = r#"{"events":[{"type":"T","data":1}]}"#;
    let (sent, last) = body.split_at(body.len() - 1);
    let mut unanswered = Vec::new();
    for _ in 0..3 {
        let mut socket = connect_from(2, &world).await;
        let request = format!(
            "POST /streams/new HTTP/1.1\r\nHost: localhost\r\nAuthorization: {user}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{sent}",
            body.len()
        );
        socket.write_all(request.as_bytes()).await.expect("sent");
        unanswered.push(socket);
    }
    let admitted = "gesta_share_taken{resource=\"requests\"}";
    metrics_have(&world, &root, (admitted, 3)).await;
    // Four strangers hold all others.
    let mut held = Vec::new();
    for host in 3..7 {
        for _ in 0..5 {
            held.push((host, connect_from(host, &world).await));
        }
    }
    // Those that gave way before may not have ended yet.
    let answered = async {
        loop {
            let mut late = connect_from(9, &world).await;
            let request =
                b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            late.write_all(request).await.expect("sent");
            if rest_of(late).await.starts_with("HTTP/1.1 200") {
                break;
            }
        }
    };
    soon(answered).await;
    for socket in &mut unanswered {
        socket.write_all(last.as_bytes()).await.expect("sent");
        let answer = read_until(socket, "\r\n\r\n").await.to_lowercase();
        assert!(answer.starts_with("http/1.1 201"), "{answer}");
        assert!(
            !answer.contains("connection: close"),
            "it gave way: {answer}"
        );
    }
    for socket in &mut known {
        let head = format!(
            "GET /streams/other HTTP/1.1\r\nHost: localhost\r\nAuthorization: {user}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.expect("sent");
        let answer = read_until(socket, "other").await.to_lowercase();
        assert!(
            !answer.contains("connection: close"),
            "it gave way: {answer}"
        );
    }
}

/// What happened: a call over gRPC without an end was cut when its connection gave up its place. Goal: it is told why.
#[tokio::test]
async fn a_call_without_an_end_is_told_that_its_connection_gave_way() {
    let (world, user) = few_connections(4).await;
    let mut held = vec![known_from(2, &world, &user).await];
    let socket = TokioIo::new(connect_from(2, &world).await);
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .handshake(socket)
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    let address = world.server.handle.local_addr();
    let watch = Request::post(format!("http://{address}/grpc.health.v1.Health/Watch"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", &user)
        .body(Full::new(Bytes::from_static(&[0; 5])))
        .expect("a request");
    let answer = soon(sender.send_request(watch)).await.expect("an answer");
    let mut body = answer.into_body();
    let first = soon(body.frame()).await.expect("a message");
    assert!(first.expect("a message").is_data());
    for host in [3, 4] {
        held.push(known_from(host, &world, &user).await);
    }
    let _late = connect_from(9, &world).await;
    let ended = async {
        loop {
            let frame = body.frame().await.expect("it is told why");
            if let Ok(trailers) = frame.expect("it is told why").into_trailers() {
                return trailers;
            }
        }
    };
    let trailers = soon(ended).await;
    assert_eq!(trailers["grpc-status"], "14");
    let why = trailers["grpc-message"].to_str().expect("text");
    assert!(why.contains("the newest of its connections"), "{why}");
}

/// A store that does not answer whether it is ready.
#[derive(Default)]
struct Unanswering {
    inner: MemoryStore,
    /// Questions that wait for an answer, and the most at once.
    asked: Arc<AtomicUsize>,
    asked_max: AtomicUsize,
}

#[async_trait]
impl Wrapper for Unanswering {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn ready(&self) -> Result<()> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.asked_max.fetch_max(asked, Ordering::SeqCst);
        let asked = Arc::clone(&self.asked);
        let _ended = guard(move || asked.fetch_sub(1, Ordering::SeqCst));
        std::future::pending().await
    }
}

/// Does something when it is dropped.
fn guard<T>(end: impl FnMut() -> T) -> impl Drop {
    struct Guard<F: FnMut() -> T, T>(F);
    impl<F: FnMut() -> T, T> Drop for Guard<F, T> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(end)
}

/// What happened: each stream of HTTP/2 that asked whether the server is ready asked the database, and held no place
/// meanwhile. Goal: however many ask, and however many do not wait for the answer, one question waits
/// at the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_is_asked_once_whether_it_is_ready() {
    let store = Arc::new(Outer(Unanswering::default()));
    let accounts = Accounts::of(store.clone());
    add(&accounts, "root", &["$admins"]).await;
    let world = World::over(store.clone(), accounts, config(), access_config()).await;
    let mut asking = Vec::new();
    for _ in 0..10 {
        let mut connection = connect(&world, 65_535).await;
        for n in 0..100 {
            soon(connection.ready()).await.expect("a connection");
            let asked = connection.send_request(get(&world, "/health/ready", None));
            let mut asked = Box::pin(asked);
            assert!(futures::poll!(&mut asked).is_pending());
            // Half of them are given up.
            if n % 2 == 0 {
                asking.push(asked);
            }
        }
        // What comes after them on the connection is answered after they have come.
        soon(connection.ready()).await.expect("a connection");
        let live = soon(connection.send_request(get(&world, "/health/live", None))).await;
        assert_eq!(live.expect("an answer").status(), 200);
        asking.push(Box::pin(connection.send_request(get(
            &world,
            "/health/ready",
            None,
        ))));
    }
    // The store does not answer, so the probe ends by its own bound, for all who wait.
    for asked in asking {
        assert_eq!(soon(asked).await.expect("an answer").status(), 503);
    }
    assert_eq!(store.asked_max.load(Ordering::SeqCst), 1);
}

/// A connection of HTTP/2 that takes `window` bytes of each answer.
async fn connect(world: &World, window: u32) -> http2::SendRequest<Empty<Bytes>> {
    let socket = TcpStream::connect(world.server.handle.local_addr());
    let socket = socket.await.expect("a connection");
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(socket))
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn get(world: &World, target: &str, authorization: Option<&str>) -> Request<Empty<Bytes>> {
    let address = world.server.handle.local_addr();
    let mut request = Request::get(format!("http://{address}{target}"));
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    request.body(Empty::new()).expect("a request")
}

/// What happened: each stream of a connection without an account that took no byte of a public answer held one of the
/// places of all requests. Goal: callers who have not proved who they are take nothing that users need, and a
/// connection that asks on and takes nothing is closed.
#[tokio::test]
async fn strangers_who_read_nothing_take_nothing_of_users() {
    let (world, one, _) = world().await;
    for target in ["/openapi.json", "/info", "/nothing"] {
        let mut connection = connect(&world, 0).await;
        let mut asked = Vec::new();
        // The places of strangers are 16, of which one address may have half.
        for _ in 0..200 {
            if soon(connection.ready()).await.is_err() {
                break;
            }
            asked.push(tokio::spawn(
                connection.send_request(get(&world, target, None)),
            ));
        }
        // Those that were answered are kept, and not read. All may be answered before the connection is closed.
        let mut answers = Vec::new();
        for answer in &mut asked {
            answers.push(soon(answer).await.expect("no panic"));
        }
        soon(async {
            while connection.ready().await.is_ok() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
        .await;
        drop(answers);
        assert_eq!(world.status("GET", "/streams/none", &one, "").await, 404);
    }
}

/// What happened: the 257th call of a connection waited in the client without a word. Goal: one connection may carry as
/// many lasting calls as there are subscriptions.
#[tokio::test]
async fn a_connection_carries_more_than_256_subscriptions() {
    let world = World::new().await;
    let token = world.token("user", &[Scope::Read], &[]).await;
    let mut connection = connect(&world, 65_535).await;
    let mut open = Vec::new();
    for _ in 0..300 {
        soon(connection.ready()).await.expect("a connection");
        let request = get(&world, "/all/subscribe", Some(&token));
        let answer = soon(connection.send_request(request))
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 200);
        open.push(answer.into_body());
    }
    for body in &mut open {
        soon(body.frame())
            .await
            .expect("a part")
            .expect("the beginning");
    }
    let request = get(&world, "/streams/none", Some(&token));
    let answer = soon(connection.send_request(request))
        .await
        .expect("an answer");
    assert_eq!(answer.status(), 404);
}

/// What happened: two thousand connections without an account held 300 MB by heads that did not end. Goal: what is not
/// short of them is bounded for each address, and takes nothing of users.
#[tokio::test]
async fn long_heads_that_do_not_end_are_bounded() {
    let (world, one, _) = world().await;
    let root = world.token("root", &[Scope::Admin], &[]).await;
    let head = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(world.server.raw(&head).await);
    }
    // A sixteenth of a mebibyte is for strangers, and one address may have half of it.
    let refused = "gesta_share_refused_total{resource=\"bytes_of_strangers\",bound=\"caller\"}";
    metrics_have(&world, &root, (refused, 7)).await;
    assert_eq!(world.status("GET", "/streams/none", &one, "").await, 404);
}
