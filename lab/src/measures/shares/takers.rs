//! The one who takes, as a process of its own, so that the nine do not wait for its connections within one program.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use gesta_grpc::frame;
use gesta_grpc::messages::shared;
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, CountOption, FilterOption, FilterOptions, StreamOption, UuidOption, all_options,
    filter_options, uuid_option,
};
use gesta_grpc::messages::streams::{ReadReq, read_req};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Child;
use tokio::task::JoinSet;

use gesta_report::failure::{Context as _, Failure, Result};
use gesta_report::host;

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
/// The variable that tells the takers' process who it is, and what it writes when they take.
const WHO: &str = "GESTA_LAB_TAKER";
const BEGUN: &[u8] = b"taking\n";

/// What the one takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Taken {
    /// Requests, by bodies that do not end.
    Requests,
    /// Subscriptions.
    Subscriptions,
    /// Bytes in flight, by large bodies that do not end.
    Bytes,
    /// Connections, from another address.
    Connections,
    /// Turns to read, by reading everything again and again.
    Reads,
    /// Turns to append, by appends of 500 events.
    Appends,
    /// Pages of catching up, by subscriptions from the start.
    CatchingUp,
    /// Turns to compare patterns, by reads over gRPC.
    Patterns,
    /// Comparisons of passwords, by wrong ones.
    Passwords,
    /// 10,000 streams without an account that read nothing.
    Strangers,
}

impl Taken {
    pub(super) fn title(self) -> &'static str {
        match self {
            Taken::Requests => "requests, by bodies that do not end",
            Taken::Subscriptions => "subscriptions",
            Taken::Bytes => "bytes in flight, by large bodies that do not end",
            Taken::Connections => "connections, from another address",
            Taken::Reads => "turns to read, by reading everything again and again",
            Taken::Appends => "turns to append, by appends of 500 events",
            Taken::CatchingUp => "pages of catching up, by subscriptions from the start",
            Taken::Patterns => "turns to compare patterns, by reads over gRPC",
            Taken::Passwords => "comparisons of passwords, by wrong ones",
            Taken::Strangers => "10,000 streams without an account that read nothing",
        }
    }

    /// The least share of their rate that the users are to keep.
    pub(super) fn floor(self) -> f64 {
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
            Taken::Passwords => get("/info", &basic(&format!("one:wrong-{number}"))),
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

/// The process of the takers.
pub(super) struct Takers {
    process: Child,
    pid: i32,
}

impl Takers {
    /// Starts it, and waits until they take.
    pub(super) async fn start(taken: Taken, address: SocketAddr, who: &str) -> Result<Self> {
        let name = taken
            .to_possible_value()
            .ok_or_else(|| Failure("it has no name".into()))?;
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command
            .args(["shares", "--taken", name.get_name(), "--from"])
            .arg(address.to_string())
            .env(WHO, who)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn()?;
        let pid = process.id().and_then(|pid| pid.try_into().ok());
        let mut begun = [0; BEGUN.len()];
        let output = process
            .stdout
            .as_mut()
            .ok_or_else(|| Failure("it has no output".into()))?;
        output
            .read_exact(&mut begun)
            .await
            .context("the takers began")?;
        Ok(Self {
            pid: pid.ok_or_else(|| Failure("it does not run".into()))?,
            process,
        })
    }

    /// How long processors have worked for it.
    pub(super) fn busy(&self) -> Duration {
        host::busy_of(self.pid)
    }

    pub(super) async fn end(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        self.process.wait().await?;
        Ok(())
    }
}

/// What the process of the takers does.
pub(super) async fn take_until_told(taken: &[Taken], address: SocketAddr) -> Result<()> {
    let who = std::env::var(WHO)?;
    let mut all = Vec::new();
    for &taken in taken {
        all.push(take(taken, address, &who).await?);
    }
    let mut output = std::io::stdout();
    output.write_all(BEGUN)?;
    output.flush()?;
    let end = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(end).await??;
    Ok(())
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
