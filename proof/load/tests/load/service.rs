//! A small service in this process that can be told to misbehave, and load on it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_load::engine::{Engine, Limits};
use gesta_load::figures::Figures;
use gesta_load::scenario::Scenario;
use gesta_load::schedule::{Drive, Stretch, windows};
use gesta_load::{Target, TargetOptions};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// What has reached the service.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Method, path and body, in the order of arrival.
    pub(crate) requests: Vec<String>,
    pub(crate) headers: Vec<hyper::HeaderMap>,
    pub(crate) open: usize,
    /// Most connections at once.
    pub(crate) open_max: usize,
    pub(crate) opened: usize,
}

/// The service; ends with its thread, which ends with the process.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

impl Service {
    /// On a thread of its own, so that it can stand still alone.
    pub(crate) fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let serving = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    let (seen, tls) = (Arc::clone(&serving), tls.clone());
                    {
                        let mut seen = seen.lock().unwrap();
                        seen.open += 1;
                        seen.opened += 1;
                        seen.open_max = seen.open_max.max(seen.open);
                    }
                    tokio::spawn(async move {
                        match tls {
                            Some(tls) => {
                                if let Ok(stream) = tls.accept(socket).await {
                                    serve(stream, &seen).await;
                                }
                            }
                            None => serve(socket, &seen).await,
                        }
                        seen.lock().unwrap().open -= 1;
                    });
                }
            });
        });
        Self { address, seen }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, seen: &Arc<Mutex<Seen>>) {
    let service = service_fn(|request: Request<Incoming>| answer(request, Arc::clone(seen)));
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A body that never ends.
struct Endless;

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 4096])))))
    }
}

type Answer = Result<Response<BoxBody<Bytes, Infallible>>, &'static str>;

async fn answer(request: Request<Incoming>, seen: Arc<Mutex<Seen>>) -> Answer {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| "no body")?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    let path = head.uri.to_string();
    let [user, key] = ["authorization", "x-key"].map(|name| head.headers.get(name).cloned());
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.requests.push(
            format!("{} {path} {body}", head.method)
                .trim_end()
                .to_owned(),
        );
        seen.headers.push(head.headers);
        seen.requests.len()
    };
    let mut response = Response::builder();
    match path.split(['?', '/']).nth(1).unwrap_or_default() {
        "silent" => std::future::pending::<()>().await,
        "reset" => return Err("reset"),
        "drip" => tokio::time::sleep(Duration::from_millis(20)).await,
        // The whole service stands still.
        "stall" if number == 20 => std::thread::sleep(Duration::from_millis(600)),
        "endless" => return Ok(Response::new(Endless.boxed())),
        "busy" if number % 2 == 1 => response = response.status(503),
        "crowded" if number % 2 == 1 => response = response.status(503),
        "crowded" => tokio::time::sleep(Duration::from_millis(20)).await,
        "full" => response = response.status(503),
        "echo" => {
            let text = Full::new(format!("{user:?} {key:?}").into());
            return Ok(response.status(500).body(text.boxed()).unwrap());
        }
        "session" => {
            let text =
                r#"{"value": "to-ken-1", "user": {"accessToken": "to-ken-2", "author": "me"}}"#;
            let response = response.header("set-cookie", "s=to-ken-3; Path=/");
            return Ok(response.body(Full::new(text.into()).boxed()).unwrap());
        }
        "broken" => response = response.status(500),
        "close" => response = response.header("connection", "close"),
        _ => {}
    }
    let text = format!("{{\"id\": {number}, \"path\": {path:?}}}");
    let response = response.header("location", format!("/made/{number}"));
    Ok(response.body(Full::new(text.into()).boxed()).unwrap())
}

/// How a load is driven; what a test does not care about has a default.
pub(crate) struct Load {
    pub(crate) text: String,
    pub(crate) url: String,
    pub(crate) options: TargetOptions,
    pub(crate) drive: Drive,
    pub(crate) duration: Duration,
    pub(crate) limits: Limits,
    pub(crate) stop: CancellationToken,
}

impl Load {
    pub(crate) fn of(text: &str, url: &str, drive: Drive) -> Self {
        let limits = Limits {
            connections: 8,
            timeout: PATIENCE,
            body_bytes_max: 100_000,
            headers: hyper::HeaderMap::new(),
            seed: 7,
        };
        Self {
            text: text.into(),
            url: url.into(),
            options: TargetOptions::default(),
            drive,
            duration: Duration::from_millis(300),
            limits,
            stop: CancellationToken::new(),
        }
    }

    /// Runs it until the service has seen so many requests.
    pub(crate) fn until(mut self, service: &Service, requests: usize) -> Result<Figures, String> {
        self.duration = Duration::from_secs(3_600);
        let (stop, seen) = (self.stop.clone(), Arc::clone(&service.seen));
        std::thread::spawn(move || {
            while seen.lock().unwrap().requests.len() < requests {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.cancel();
        });
        self.run()
    }

    /// Runs it, and fails if it hangs.
    pub(crate) fn run(self) -> Result<Figures, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async move {
            tokio::time::timeout(PATIENCE * 2, self.go()).await.unwrap()
        })
    }

    async fn go(self) -> Result<Figures, String> {
        let scenario = Scenario::parse(Path::new("test.toml"), &self.text).unwrap();
        let target = Target::resolve(&self.url, &self.options).await?;
        let engine = Engine::new(scenario, target, self.limits);
        engine.set_up(&self.stop).await?;
        let stretch = Stretch {
            drive: self.drive,
            warm_up: Duration::ZERO,
            duration: self.duration,
        };
        let [window] = windows(&[()], Instant::now(), |()| stretch)
            .try_into()
            .unwrap();
        Ok(engine.run(&window, stretch, &self.stop).await)
    }
}
