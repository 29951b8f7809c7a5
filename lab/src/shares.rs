//! `shares`: what do nine users keep beside one who takes all that there is of one thing, and what do users keep beside
//! ten thousand streams of callers without an account?
//!
//! A server with small maxima is started on a new SQLite store. The nine append and read one after the other, each on a
//! connection; first alone, then beside the takers of each thing in turn, which hold it or ask for it again and again.
//! Not here: consumer groups, whose shares tests of the server hold.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_grpc::frame;
use gesta_grpc::messages::shared;
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, CountOption, FilterOption, FilterOptions, StreamOption, UuidOption, all_options,
    filter_options, uuid_option,
};
use gesta_grpc::messages::streams::{ReadReq, read_req};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::client::conn::http2;
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::child::{Program, ProgramArgs, Server};
use crate::failure::{Context, Result, fail};
use crate::histogram::Latencies;
use crate::http::Connection;
use crate::report::{Report, ReportArgs, Table, Unit};
use crate::units;

/// Users beside the one who takes.
const NINE: usize = 9;
/// Small maxima, so that one machine can take all.
const CONFIG: &str = "[server]\nconnections_max = 1500\nrequests_in_flight_max = 200\nsubscriptions_max = 200\n\
    bytes_in_flight_max = \"64MiB\"\nreads_in_flight_max = 8\n";
/// What the one asks for: more than there is of each.
const HELD: usize = 300;
const CONNECTIONS: usize = 1_600;
/// Connections on which the one asks again and again.
const ASKING: usize = 16;
/// Streams of callers without an account: so many connections with so many streams each.
const STRANGERS: usize = 100;
const STREAMS: usize = 100;
/// A pattern that fits nothing, which takes long to find out.
const PATTERN: &str = "^(?:[a-z0-9-]?){60}!$";
const EVENT: &str = r#"{"events":[{"type":"T","data":1}]}"#;

/// What nine users keep beside one who takes all there is of one thing, and users beside callers without an account.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct SharesArgs {
    /// How long the nine work beside each taker, and before that alone.
    #[arg(long, default_value = "3s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "duration_seconds")]
    duration: Duration,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// What the one takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Requests,
    Subscriptions,
    Bytes,
    Connections,
    Reads,
    Appends,
    CatchingUp,
    Patterns,
    Hashing,
    Strangers,
}

impl Taken {
    const ALL: [Taken; 10] = [
        Taken::Requests,
        Taken::Subscriptions,
        Taken::Bytes,
        Taken::Connections,
        Taken::Reads,
        Taken::Appends,
        Taken::CatchingUp,
        Taken::Patterns,
        Taken::Hashing,
        Taken::Strangers,
    ];

    fn title(self) -> &'static str {
        match self {
            Taken::Requests => "requests, by bodies that do not end",
            Taken::Subscriptions => "subscriptions",
            Taken::Bytes => "bytes in flight, by large bodies that do not end",
            Taken::Connections => "connections, from another address",
            Taken::Reads => "turns to read, by reading everything again and again",
            Taken::Appends => "turns to append, by appends of 500 events",
            Taken::CatchingUp => "pages of catching up, by subscriptions from the start",
            Taken::Patterns => "turns to compare patterns, by reads over gRPC",
            Taken::Hashing => "comparisons of passwords, by wrong ones",
            Taken::Strangers => "10,000 streams without an account that read nothing",
        }
    }

    /// The least share of their rate that the users are to keep.
    fn floor(self) -> f64 {
        match self {
            Taken::Strangers => 0.9,
            _ => 0.8,
        }
    }

    /// Requests that are sent once and keep what they take; none if it is asked for again and again.
    fn held(self, who: &str) -> Option<(usize, String)> {
        let post = |length: usize, body: &str| {
            format!(
                "POST /streams/cut HTTP/1.1\r\nHost: localhost\r\nAuthorization: {who}\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            )
        };
        match self {
            Taken::Requests => Some((HELD, post(10, "{"))),
            Taken::Bytes => Some((HELD, post(1_000_001, &" ".repeat(1_000_000)))),
            Taken::Connections => Some((CONNECTIONS, String::new())),
            Taken::Subscriptions => {
                let head = "GET /all/subscribe?after=end HTTP/1.1\r\nHost: localhost\r\n";
                Some((HELD, format!("{head}Authorization: {who}\r\n\r\n")))
            }
            _ => None,
        }
    }

    /// A request that is sent again and again, each time on a connection of its own, and read to its end.
    fn again(self, who: &str, number: usize) -> String {
        let get = |path: &str, who: &str| {
            format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {who}\r\n\
                 Accept: application/x-ndjson\r\nConnection: close\r\n\r\n"
            )
        };
        match self {
            Taken::CatchingUp => get("/all/subscribe", who),
            // A wrong password, another one each time.
            Taken::Hashing => get("/info", &basic(&format!("one:wrong-{number}"))),
            Taken::Appends => {
                let events = vec![r#"{"type":"T","data":1}"#; 500].join(",");
                let body = format!("{{\"events\":[{events}]}}");
                format!(
                    "POST /streams/many HTTP/1.1\r\nHost: localhost\r\nAuthorization: {who}\r\n\
                     Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                )
            }
            _ => get("/all", who),
        }
    }
}

/// Text in the coding that `Authorization: Basic` has.
fn basic(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::from("Basic ");
    for three in text.as_bytes().chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            out.push(match digit > three.len() {
                true => '=',
                false => char::from(DIGITS[index as usize]),
            });
        }
    }
    out
}

/// How the nine worked.
#[derive(Debug)]
struct Worked {
    rate: f64,
    p99: f64,
    /// Calls that had another answer than they were to have, and one of these answers.
    refused: u64,
    answer: String,
}

/// A taker, and how the nine worked before and beside it.
#[derive(Debug)]
struct Row {
    taken: Taken,
    alone: Worked,
    beside: Worked,
}

impl Row {
    fn kept(&self) -> f64 {
        self.beside.rate / self.alone.rate.max(0.000_001)
    }

    fn times(&self) -> f64 {
        self.beside.p99 / self.alone.p99.max(0.000_001)
    }

    fn is_good(&self) -> bool {
        self.kept() >= self.taken.floor() && self.times() <= 10.0 && self.beside.refused == 0
    }
}

/// The command. True if the users kept what they are to keep.
pub(crate) async fn run(args: &SharesArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("shares", "One who takes everything, and nine others", 0);
    let program = args.program.find()?;
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite:{}", folder.path().join("shares.db").display());
    let (one, nine) = users(&program, &store, folder.path())?;
    let config = folder.path().join("gesta.toml");
    std::fs::write(&config, CONFIG)?;
    let mut server = Program::gesta(&program);
    let config = config.display().to_string();
    server.arguments.extend(["--config".to_owned(), config]);
    let log = folder.path().join("server.log");
    let mut server = Server::start_program(server, &store, &log).await?;
    let address = server.address();
    let mut rows = Vec::new();
    for taken in Taken::ALL {
        if stop.is_cancelled() {
            break;
        }
        eprintln!("  {}", taken.title());
        let alone = work(address, &nine, args.duration).await?;
        let takers = take(taken, address, &one).await?;
        let beside = work(address, &nine, args.duration).await;
        drop(takers);
        let beside = beside.context(taken.title())?;
        rows.push(Row {
            taken,
            alone,
            beside,
        });
    }
    server.stop().await;
    report.workload = json!(args);
    tell(&mut report, &rows);
    let complete = rows.len() == Taken::ALL.len();
    report.finish(&args.report, complete)
}

fn tell(report: &mut Report, rows: &[Row]) {
    let least = rows.iter().map(Row::kept).reduce(f64::min).unwrap_or(0.0);
    report.finding = format!(
        "Nine users kept at least {:.0} % of their rate, whatever one took.",
        least * 100.0
    );
    for row in rows.iter().filter(|row| !row.is_good()) {
        report.problem(format!(
            "{}: {:.0} % of the rate was kept, the p99 was {:.1} times that alone, and {} calls were refused {}",
            row.taken.title(),
            row.kept() * 100.0,
            row.times(),
            row.beside.refused,
            row.beside.answer
        ));
    }
    let table = Table::of("What the nine kept", rows)
        .column("taken", Unit::Words, |row| row.taken.title())
        .column("calls/s alone", Unit::Count, |row| row.alone.rate)
        .column("beside", Unit::Count, |row| row.beside.rate)
        .column("kept", Unit::Share, Row::kept)
        .column("p99 alone", Unit::Millis, |row| row.alone.p99)
        .column("p99 beside", Unit::Millis, |row| row.beside.p99)
        .column("times", Unit::Times, Row::times)
        .column("refused", Unit::Count, |row| row.beside.refused);
    report.table(table.table());
}

/// Makes an administrator, the one and the nine, and returns what says who the latter are.
fn users(program: &Path, store: &str, folder: &Path) -> Result<(String, Vec<String>)> {
    let password = folder.join("password");
    std::fs::write(&password, "a password of the lab\n")?;
    let password = password.display().to_string();
    let gesta = |arguments: &[&str]| -> Result<String> {
        let command = || {
            Command::new(program)
                .args(arguments)
                .args(["--store", store])
                .output()
        };
        let done = tokio::task::block_in_place(command)?;
        if !done.status.success() {
            return fail(format!(
                "{arguments:?}: {}",
                String::from_utf8_lossy(&done.stderr)
            ));
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    let user = |name: &str| -> Result<String> {
        gesta(&["user", "add", name, "--password-file", &password])?;
        let token = gesta(&[
            "token", "create", name, "--scope", "read", "--scope", "append",
        ])?;
        Ok(format!("Bearer {token}"))
    };
    gesta(&[
        "user",
        "add",
        "admin",
        "--admin",
        "--password-file",
        &password,
    ])?;
    let one = user("one")?;
    let nine: Result<Vec<_>> = (0..NINE).map(|n| user(&format!("other-{n}"))).collect();
    Ok((one, nine?))
}

/// Lets the nine work: each appends an event and reads the last one, again and again.
async fn work(address: SocketAddr, nine: &[String], duration: Duration) -> Result<Worked> {
    let mut users = JoinSet::new();
    for (n, who) in nine.iter().enumerate() {
        let who = who.clone();
        users.spawn(async move {
            let mut connection = Connection::open_as(address, &who).await?;
            let (begun, mut latencies) = (Instant::now(), Latencies::default());
            let (mut refused, mut refusal) = (0, String::new());
            let (append, read) = (
                format!("/streams/user-{n}"),
                format!("/streams/user-{n}?direction=backwards&limit=1"),
            );
            while begun.elapsed() < duration {
                for (method, path, body, expected) in [
                    (Method::POST, &append, EVENT, 201),
                    (Method::GET, &read, "", 200),
                ] {
                    let asked = Instant::now();
                    let (status, answer) = connection.ask(method, path, Bytes::from(body)).await?;
                    if status == expected {
                        latencies.record(asked.elapsed());
                    } else {
                        refused += 1;
                        refusal = String::from_utf8_lossy(&answer).into_owned();
                    }
                }
            }
            Result::Ok((latencies, refused, refusal))
        });
    }
    let (mut all, mut refused, mut answer) = (Latencies::default(), 0, String::new());
    while let Some(of_one) = users.join_next().await {
        let (latencies, refused_of_one, refusal) = of_one??;
        all.merge(&latencies);
        refused += refused_of_one;
        if !refusal.is_empty() {
            answer = refusal;
        }
    }
    let all = all.percentiles();
    Ok(Worked {
        rate: all.count as f64 / duration.as_secs_f64(),
        p99: all.p99,
        refused,
        answer,
    })
}

/// Begins to take. Whoever drops what is returned ends it.
async fn take(taken: Taken, address: SocketAddr, who: &str) -> Result<JoinSet<()>> {
    let mut takers = JoinSet::new();
    if taken == Taken::Strangers {
        for _ in 0..STRANGERS {
            ask_and_read_nothing(address, &mut takers).await?;
        }
        return Ok(takers);
    }
    if taken == Taken::Patterns {
        read_by_pattern(address, who, &mut takers).await?;
        return Ok(takers);
    }
    if let Some((count, request)) = taken.held(who) {
        for _ in 0..count {
            let mut socket = from_elsewhere(address).await?;
            let request = request.clone();
            takers.spawn(async move {
                // The server may refuse it meanwhile, or let it give way.
                let _ = socket.write_all(request.as_bytes()).await;
                let mut answer = Vec::new();
                let _ = socket.read_to_end(&mut answer).await;
            });
        }
        return Ok(takers);
    }
    for taker in 0..ASKING {
        let who = who.to_owned();
        takers.spawn(async move {
            for number in 0.. {
                let request = taken.again(&who, number * ASKING + taker);
                // What was refused is asked for again.
                let _ = ask_once(taken, address, &request).await;
            }
        });
    }
    Ok(takers)
}

async fn ask_once(taken: Taken, address: SocketAddr, request: &str) -> Result<()> {
    let mut socket = from_elsewhere(address).await?;
    socket.write_all(request.as_bytes()).await?;
    let (mut part, mut end) = (vec![0; 64 * 1_024], Vec::new());
    loop {
        let n = socket.read(&mut part).await?;
        end.extend_from_slice(&part[..n]);
        let caught_up = || end.windows(16).any(|text| text == b"event: caught_up");
        if n == 0 || (taken == Taken::CatchingUp && caught_up()) {
            return Ok(());
        }
        end.drain(..end.len().saturating_sub(16));
    }
}

/// A connection from another address of this machine than that of the nine.
async fn from_elsewhere(address: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, 2], 0).into())?;
    Ok(socket.connect(address).await?)
}

/// Opens streams of HTTP/2 that ask for a public answer, and take no byte of it.
async fn ask_and_read_nothing(address: SocketAddr, takers: &mut JoinSet<()>) -> Result<()> {
    let socket = from_elsewhere(address).await?;
    let (mut sender, driver) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(socket))
        .await?;
    takers.spawn(async move {
        let _ = driver.await;
    });
    for _ in 0..STREAMS {
        if sender.ready().await.is_err() {
            return Ok(());
        }
        let request = Request::get(format!("http://{address}/openapi.json")).body(Empty::new())?;
        let answer = sender.send_request(request);
        takers.spawn(async move {
            if let Ok(answer) = answer.await {
                let _ = answer.into_body().collect().await;
            }
        });
    }
    Ok(())
}

/// Reads all events over gRPC by a pattern, in several calls at once, again and again.
async fn read_by_pattern(address: SocketAddr, who: &str, takers: &mut JoinSet<()>) -> Result<()> {
    let expression = filter_options::Expression {
        regex: PATTERN.into(),
        prefix: Vec::new(),
    };
    let filter = FilterOptions {
        filter: Some(filter_options::Filter::StreamIdentifier(expression)),
        window: Some(filter_options::Window::Count(shared::Empty {})),
        checkpoint_interval_multiplier: 1,
    };
    let start = all_options::AllOption::Start(shared::Empty {});
    let options = read_req::Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(start),
        })),
        count_option: Some(CountOption::Count(u64::MAX)),
        filter_option: Some(FilterOption::Filter(filter)),
        uuid_option: Some(UuidOption {
            content: Some(uuid_option::Content::String(shared::Empty {})),
        }),
        ..read_req::Options::default()
    };
    let message = frame::framed(&ReadReq {
        options: Some(options),
    });
    let socket = from_elsewhere(address).await?;
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .handshake::<_, Full<Bytes>>(TokioIo::new(socket))
        .await?;
    takers.spawn(async move {
        let _ = driver.await;
    });
    for _ in 0..ASKING {
        let (mut sender, who, message) = (sender.clone(), who.to_owned(), message.clone());
        takers.spawn(async move {
            while sender.ready().await.is_ok() {
                let path = "/event_store.client.streams.Streams/Read";
                let request = Request::post(format!("http://{address}{path}"))
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
                    .header("authorization", &who)
                    .body(Full::new(message.clone()));
                let Ok(request) = request else { return };
                if let Ok(answer) = sender.send_request(request).await {
                    let _ = answer.into_body().collect().await;
                }
            }
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_is_base64() {
        for (text, coded) in [
            ("one:wrong-1", "Basic b25lOndyb25nLTE="),
            ("a:b", "Basic YTpi"),
            ("ab:c", "Basic YWI6Yw=="),
        ] {
            assert_eq!(basic(text), coded);
        }
    }
}
