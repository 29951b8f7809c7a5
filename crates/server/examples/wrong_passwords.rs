//! Measures what a flood of wrong passwords does to callers who are logged in:
//!
//! ```text
//! cargo run --release --package gesta-server --example wrong_passwords [WRONG_A_SECOND]
//! ```
//!
//! Callers with a token append and read at a steady rate: at first alone, then while a flood of wrong passwords arrives
//! from the same address. The argument says how many wrong passwords a second arrive (10,000); each differs from the
//! others. Latency counts from the time at which a request was due. Server, callers and flood share this process. The
//! example prints the quantiles of both parts, and how the requests of the flood were answered.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_access::{Access, Accounts, AddUser, Config as AccessConfig, FirstUser, NewToken, Scope};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Registry};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Number of connections of callers, each of which makes [`REQUESTS_PER_SECOND`] requests a second.
const CALLERS: u32 = 8;
const REQUESTS_PER_SECOND: u32 = 50;
/// Number of connections of the flood.
const GUESSERS: u64 = 32;
const TIME: Duration = Duration::from_secs(15);

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A connection that sends one request after the other.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn to(server: SocketAddr) -> Fallible<Self> {
        let socket = TcpStream::connect(server).await?;
        socket.set_nodelay(true)?;
        Ok(Self(BufReader::new(socket)))
    }

    /// Sends a request and returns the status of the answer.
    async fn send(&mut self, head: &str, authorization: &str, body: &str) -> Fallible<u16> {
        let request = format!(
            "{head} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(self.0.read_u8().await?);
        }
        let answer = String::from_utf8(answer)?.to_ascii_lowercase();
        let length = answer
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next())
            .ok_or("an answer without a length")?;
        let mut body = vec![0; length.parse()?];
        self.0.read_exact(&mut body).await?;
        Ok(answer.get(9..12).ok_or("no status")?.parse()?)
    }
}

/// Appends and reads at a steady rate. Returns how long each request took, from the time at which it was due.
async fn call(server: SocketAddr, token: String, number: u32) -> Fallible<Vec<Duration>> {
    let mut connection = Connection::to(server).await?;
    let (stream, body) = (
        format!("/streams/cart-{number}"),
        r#"{"events":[{"type":"t","data":1}]}"#,
    );
    let period = Duration::from_secs(1) / REQUESTS_PER_SECOND;
    let begun = Instant::now() + period * number / CALLERS;
    let mut took = Vec::new();
    for n in 0.. {
        let due = begun + period * n;
        if due > begun + TIME {
            break;
        }
        tokio::time::sleep_until(due).await;
        let status = match n % 2 {
            0 => {
                connection
                    .send(&format!("POST {stream}"), &token, body)
                    .await?
            }
            _ => {
                connection
                    .send(&format!("GET {stream}/0"), &token, "")
                    .await?
            }
        };
        assert!(matches!(status, 200 | 201), "{status}");
        took.push(due.elapsed());
    }
    Ok(took)
}

async fn callers(server: SocketAddr, token: &str) -> Fallible<Vec<Duration>> {
    let mut calling = JoinSet::new();
    for number in 0..CALLERS {
        calling.spawn(call(server, token.to_owned(), number));
    }
    let mut took = Vec::new();
    while let Some(one) = calling.join_next().await {
        took.extend(one??);
    }
    took.sort_unstable();
    Ok(took)
}

/// Sends wrong passwords until the future is dropped, `rate` a second over all connections. `sent` counts them, and
/// `told` the answers: those that refuse the password, and the others.
async fn guess(
    server: SocketAddr,
    rate: u64,
    sent: Arc<AtomicU64>,
    told: Arc<[AtomicU64; 2]>,
) -> Fallible<()> {
    let mut connection = Connection::to(server).await?;
    let begun = Instant::now();
    loop {
        let number = sent.fetch_add(1, Ordering::Relaxed);
        let due = begun + Duration::from_secs(number) / u32::try_from(rate)?;
        tokio::time::sleep_until(due).await;
        let wrong = STANDARD.encode(format!("shop:guess number {number}"));
        let status = connection
            .send("GET /info", &format!("Basic {wrong}"), "")
            .await?;
        let place = usize::from(status != 401);
        told[place].fetch_add(1, Ordering::Relaxed);
    }
}

fn show(what: &str, sorted: &[Duration]) -> Duration {
    let at = |percent: usize| sorted[(sorted.len() - 1) * percent / 100];
    println!(
        "{what}: {} requests, p50 {:?}, p99 {:?}",
        sorted.len(),
        at(50),
        at(99)
    );
    at(99)
}

#[tokio::main]
async fn main() -> Fallible<()> {
    let rate: u64 = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |rate| rate.parse())?;
    let store: Arc<dyn gesta_core::EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    let add = AddUser {
        name: "shop".into(),
        password: "correct horse".into(),
        groups: vec!["$admins".into()],
        full_name: String::new(),
        first: FirstUser::RefuseRights,
    };
    accounts.add_user(add).await?;
    let token = NewToken {
        user: "shop".into(),
        label: String::new(),
        scopes: vec![Scope::Read, Scope::Append],
        prefixes: Vec::new(),
        expires: None,
    };
    let token = format!("Bearer {}", accounts.create_token(token).await?);
    let access = Access::start(Arc::clone(&store), AccessConfig::default());
    access.loaded().await;
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    let bound = gesta_server::bind(config).await?.with_access(access);
    let handle = bound.serve(store, Registry::default());
    let server = handle.local_addr();
    let alone = show("alone", &callers(server, &token).await?);
    let (sent, told) = (
        Arc::<AtomicU64>::default(),
        Arc::<[AtomicU64; 2]>::default(),
    );
    let mut flood = JoinSet::new();
    for _ in 0..GUESSERS {
        flood.spawn(guess(server, rate, Arc::clone(&sent), Arc::clone(&told)));
    }
    let beside = show("beside the flood", &callers(server, &token).await?);
    flood.shutdown().await;
    let [wrong, overloaded] = [0, 1].map(|place| told[place].load(Ordering::Relaxed));
    let answers = BTreeMap::from([("401", wrong), ("others, 503 above all", overloaded)]);
    println!(
        "the flood: {} a second were answered: {answers:?}",
        (wrong + overloaded) / TIME.as_secs()
    );
    println!(
        "p99 beside the flood: {:.2} times",
        beside.as_secs_f64() / alone.as_secs_f64()
    );
    handle.shutdown().await;
    Ok(())
}
