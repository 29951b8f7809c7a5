//! The server, what a call costs it, and how long others wait meanwhile.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::Request;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Call;
use crate::grpc::GrpcCall;
use crate::http::HttpCall;
use crate::support::{Server, succeed, url_of};
use crate::values::Maker;

/// Longest time that an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// An answer that may last for ever is left when nothing has come for so long.
const SILENCE_MAX: Duration = Duration::from_millis(30);
/// Pause between two questions of the other caller.
const PAUSE: Duration = Duration::from_millis(1);

/// What a call cost.
#[derive(Debug)]
pub(crate) struct Cost {
    memory: usize,
    answered: usize,
    /// How long another caller waited for a read, or anybody for whether the server lives.
    pub(crate) wait: Duration,
    pub(crate) took: Duration,
    /// The status.
    pub(crate) end: String,
}

impl Cost {
    pub(crate) fn beyond_the_answer(&self) -> usize {
        self.memory.saturating_sub(self.answered)
    }
}

/// What the other caller has met.
#[derive(Default)]
struct Met {
    longest: Duration,
    rounds: usize,
    is_over: bool,
}

pub(crate) struct Watched {
    server: Server,
    address: SocketAddr,
    /// What an administrator and a user without rights say who they are.
    callers: [String; 2],
    met: Arc<Mutex<Met>>,
    _folder: tempfile::TempDir,
}

impl Watched {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = url_of(&folder.path().join("gesta.db"));
        succeed(&["schema", "create", "--store", &store]);
        succeed(&["virtual-streams", "on", "--store", &store]);
        let password = folder.path().join("password");
        std::fs::write(&password, "a password of some length\n").unwrap();
        let file = password.to_str().unwrap();
        let token = |user: &str, more: &[&str], scope: &str| {
            let add = [
                "user",
                "add",
                user,
                "--password-file",
                file,
                "--store",
                &store,
            ];
            succeed(&[&add[..], more].concat());
            let made = succeed(&["token", "create", user, "--scope", scope, "--store", &store]);
            format!("Bearer {}", made.lines().last().unwrap().trim())
        };
        let root = token("root", &["--admin"], "admin");
        let callers = [root, token("mate", &[], "admin")];
        let other = token("other", &[], "read");
        let server = Server::start(&store);
        let address: SocketAddr = server.address().parse().unwrap();
        let met = Arc::new(Mutex::new(Met::default()));
        let noted = Arc::clone(&met);
        std::thread::spawn(move || watch(address, &other, &noted));
        Self {
            server,
            address,
            callers,
            met,
            _folder: folder,
        }
    }

    pub(crate) fn stop(self) {
        self.met.lock().unwrap().is_over = true;
        self.server.stop();
    }

    fn status(&self, line: &str) -> Option<usize> {
        let path = format!("/proc/{}/status", self.server.pid());
        let status = std::fs::read_to_string(path).ok()?;
        let found = status.lines().find_map(|it| it.strip_prefix(line))?;
        let kilobytes: usize = found.split_whitespace().next()?.parse().ok()?;
        Some(kilobytes * 1_024)
    }

    /// Resets the peak of what the server holds, and returns what it holds now; `None` where the system does not tell.
    fn reset_peak(&self) -> Option<usize> {
        let path = format!("/proc/{}/clear_refs", self.server.pid());
        std::fs::write(path, "5").ok()?;
        self.status("VmRSS:")
    }

    /// Makes a call, and returns what it cost.
    pub(crate) async fn cost(&self, call: &Call, seed: u64) -> Cost {
        let caller = match seed % 16 {
            0 => "",
            1 | 2 => &self.callers[1],
            _ => &self.callers[0],
        };
        self.round().await;
        self.met.lock().unwrap().longest = Duration::ZERO;
        let (before, begun) = (self.reset_peak(), Instant::now());
        let answer = async {
            match call {
                Call::Http(http) => by_http(self.address, http, caller).await,
                Call::Grpc(grpc) => by_grpc(self.address, grpc, caller, seed).await,
                Call::Frames(bytes) => by_frames(self.address, bytes).await,
            }
        };
        let answer = tokio::time::timeout(ANSWER_MAX, answer).await;
        let took = begun.elapsed();
        let (end, answered) = answer.unwrap_or_else(|_| panic!("no answer: {call}"));
        self.round().await;
        let peak = self.status("VmHWM:");
        let dead = || panic!("it died by {call}: {:?}", self.server.logged("panicked"));
        if std::fs::exists(format!("/proc/{}/exe", self.server.pid())).is_ok_and(|is| !is) {
            dead();
        }
        Cost {
            memory: before.map_or(0, |before| {
                peak.map_or(0, |peak| peak.saturating_sub(before))
            }),
            answered,
            wait: self.met.lock().unwrap().longest,
            took,
            end,
        }
    }

    /// Waits until the other caller has been answered what it asks now.
    async fn round(&self) {
        let rounds = || self.met.lock().unwrap().rounds;
        let before = rounds();
        let begun = Instant::now();
        while rounds() < before + 1 {
            assert!(
                begun.elapsed() < ANSWER_MAX,
                "another caller gets no answer"
            );
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    /// Stores what calls read: large events, links to them, many small events, many streams.
    pub(crate) async fn seed(&self) {
        let large = format!("\"{}\"", "x".repeat(1_000_000));
        for _ in 0..10 {
            let body = format!(
                r#"{{"events":[{}]}}"#,
                vec![event("T", &large); 4].join(",")
            );
            self.store("/streams/big", body).await;
        }
        let link = r#"{"type":"$>","data_base64":"MEBiaWc="}"#;
        let body = format!(r#"{{"events":[{}]}}"#, vec![link; 40].join(","));
        self.store("/streams/links", body).await;
        let small = r#"{"type":"T","data":1,"tags":["t:1","t:2"]}"#;
        for _ in 0..2 {
            let body = format!(r#"{{"events":[{}]}}"#, vec![small; 5_000].join(","));
            self.store("/streams/tiny", body).await;
        }
        let long = "y".repeat(1_000);
        for part in 0..6 {
            let appends = (0..500).map(|n| {
                let name = match n % 2 {
                    0 => format!("many-{}", part * 500 + n),
                    _ => format!("many-{long}-{}", part * 500 + n),
                };
                format!(r#"{{"stream":"{name}","events":[{}]}}"#, event("U", "{}"))
            });
            let body = format!(
                r#"{{"appends":[{}]}}"#,
                appends.collect::<Vec<_>>().join(",")
            );
            self.store("/append", body).await;
        }
        self.store(
            "/streams/kept",
            format!(r#"{{"events":[{}]}}"#, event("U", "{}")),
        )
        .await;
        for target in ["/streams/tiny/groups/g", "/all/groups/g"] {
            self.request("PUT", target, "{}".to_owned()).await;
        }
    }

    async fn store(&self, target: &str, body: String) {
        let end = self.request("POST", target, body).await;
        // A call before may have made the stream one that is closed for good.
        assert!(
            ["201", "409", "410"].contains(&end.as_str()),
            "{target}: {end}"
        );
    }

    async fn request(&self, method: &str, target: &str, body: String) -> String {
        let call = HttpCall {
            route: String::new(),
            head: format!(
                "{method} {target} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            ),
            body: body.into_bytes(),
            is_endless: false,
        };
        by_http(self.address, &call, &self.callers[0]).await.0
    }
}

fn event(kind: &str, data: &str) -> String {
    format!(r#"{{"type":"{kind}","data":{data}}}"#)
}

/// Asks again and again whether the server lives, and reads, and notes the longest wait.
fn watch(address: SocketAddr, caller: &str, met: &Mutex<Met>) {
    use std::io::{Read as _, Write as _};
    let connect = || std::net::TcpStream::connect(address);
    let mut socket: Option<std::net::TcpStream> = None;
    let mut buffer = vec![0; 64 * 1_024];
    let requests = [
        "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        format!(
            "GET /streams/kept?limit=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {caller}\r\n\r\n"
        ),
    ];
    while !met.lock().unwrap().is_over {
        for request in &requests {
            let begun = Instant::now();
            let answered = socket.take().map_or_else(connect, Ok).and_then(|mut one| {
                one.write_all(request.as_bytes())?;
                // Both answers end so.
                let mut bytes = one.read(&mut buffer)?;
                while bytes > 0 && !buffer[..bytes].ends_with(b"}\n") {
                    bytes = one.read(&mut buffer)?;
                }
                if bytes > 0 {
                    socket = Some(one);
                }
                Ok(())
            });
            let mut met = met.lock().unwrap();
            if answered.is_ok() {
                met.longest = met.longest.max(begun.elapsed());
            }
        }
        met.lock().unwrap().rounds += 1;
        std::thread::sleep(PAUSE);
    }
}

/// Reads from a connection up to its end, or up to the silence of an answer that may last for ever; the bytes, and how
/// the answer begins.
async fn read_on(socket: &mut TcpStream, is_endless: bool) -> (usize, Vec<u8>) {
    let (mut total, mut beginning, mut buffer) = (0, Vec::new(), vec![0; 256 * 1_024]);
    loop {
        let reading = socket.read(&mut buffer);
        let read = match is_endless && total > 0 {
            true => tokio::time::timeout(SILENCE_MAX, reading).await,
            false => Ok(reading.await),
        };
        match read {
            Ok(Ok(bytes @ 1..)) => {
                total += bytes;
                let wanted = 100_usize.saturating_sub(beginning.len()).min(bytes);
                beginning.extend_from_slice(&buffer[..wanted]);
            }
            _ => return (total, beginning),
        }
    }
}

async fn by_http(address: SocketAddr, call: &HttpCall, caller: &str) -> (String, usize) {
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    let authorization = match caller {
        "" => String::new(),
        caller => format!("Authorization: {caller}\r\n"),
    };
    let head = format!(
        "{}Host: localhost\r\n{authorization}Connection: close\r\n\r\n",
        call.head
    );
    let bytes = [head.as_bytes(), &call.body].concat();
    // The server may refuse and close before it has read everything.
    let _ = socket.write_all(&bytes).await;
    let (answered, beginning) = read_on(&mut socket, call.is_endless).await;
    let beginning = String::from_utf8_lossy(&beginning);
    let status = beginning.get(9..12).unwrap_or("closed");
    (status.to_owned(), answered)
}

async fn by_grpc(address: SocketAddr, call: &GrpcCall, caller: &str, seed: u64) -> (String, usize) {
    let socket = TcpStream::connect(address).await.expect("a connection");
    let http2 = http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
    let (mut sender, connection) = http2.await.expect("HTTP/2");
    let driving = tokio::spawn(connection);
    // Sometimes in many small frames, but not in more than the window of the client's own library holds.
    let piece = match seed % 7 {
        0 => (call.body.len() / 5_000).max(1),
        _ => call.body.len().max(1),
    };
    let pieces: Vec<_> = call
        .body
        .chunks(piece)
        .map(Bytes::copy_from_slice)
        .collect();
    let frames = pieces
        .into_iter()
        .map(|piece| Ok::<_, std::convert::Infallible>(Frame::data(piece)));
    let timeout = if call.is_endless { "100m" } else { "30S" };
    let request = Request::post(format!("http://{address}{}", call.path))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout);
    let request = match caller {
        "" => request,
        caller => request.header("authorization", caller),
    };
    let request = request.body(StreamBody::new(stream::iter(frames))).unwrap();
    let (mut status, mut answered) = ("closed".to_owned(), 0);
    if let Ok(answer) = sender.send_request(request).await {
        let (parts, mut body) = answer.into_parts();
        let mut note = |headers: &hyper::HeaderMap| {
            if let Some(code) = headers.get("grpc-status") {
                status = code.to_str().unwrap().to_owned();
            }
        };
        note(&parts.headers);
        while let Some(Ok(frame)) = body.frame().await {
            match frame.into_data() {
                Ok(data) => answered += data.len(),
                Err(frame) => note(&frame.into_trailers().unwrap()),
            }
        }
    }
    driving.abort();
    (status, answered)
}

/// Sends frames, and takes what comes until nothing comes any more.
async fn by_frames(address: SocketAddr, bytes: &[u8]) -> (String, usize) {
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    let _ = socket.write_all(bytes).await;
    let (answered, _) = read_on(&mut socket, true).await;
    ("frames".to_owned(), answered)
}

/// A request of HTTP/2 whose headers are few bytes each, and stand for many: each refers to the same long one.
pub(crate) fn many_headers(maker: &mut Maker) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x84, 0x41, 1, b'l'];
    let value = maker.pick(&[0, 100, 3_900]);
    block.extend([0x40, 1, b'x']);
    integer(value, &mut block);
    block.extend(std::iter::repeat_n(b'y', value));
    block.extend(std::iter::repeat_n(0xbe, maker.times(1)));
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let pieces: Vec<&[u8]> = block.chunks(16_384).collect();
    for (n, piece) in pieces.iter().enumerate() {
        let is_last = n + 1 == pieces.len();
        let kind = if n == 0 { 1 } else { 9 };
        let flags = u8::from(n == 0) | if is_last { 4 } else { 0 };
        out.extend(&(piece.len() as u32).to_be_bytes()[1..]);
        out.extend([kind, flags, 0, 0, 0, 1]);
        out.extend_from_slice(piece);
    }
    out
}

/// A number in seven bits, and more if it needs them.
fn integer(value: usize, out: &mut Vec<u8>) {
    if value < 127 {
        return out.push(value as u8);
    }
    out.push(127);
    let mut rest = value - 127;
    while rest >= 128 {
        out.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    out.push(rest as u8);
}
