//! A small cinema in memory that can be told to misbehave; for tests.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

/// What goes wrong, counted in requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// Acknowledges this reservation and forgets it.
    pub lose: Option<u64>,
    /// Accepts every reservation of a held seat from this one on.
    pub sell_twice: Option<u64>,
    /// Reads show every seat free.
    pub stale_reads: bool,
    /// Before answering this request stops everything for so long.
    pub stall: Option<(u64, Duration)>,
    /// Closes the connection after each so many answers.
    pub close_every: Option<u64>,
    /// Does what is asked and closes the connection without an answer, each so many requests.
    pub silent_every: Option<u64>,
    /// Refuses each so many requests as overloaded.
    pub(crate) refuse_every: Option<u64>,
    /// Fails at each so many requests, and does nothing.
    pub(crate) fail_every: Option<u64>,
    /// Answers a reservation only once there is a permit.
    pub(crate) hold: Option<Arc<Semaphore>>,
}

type Shows = Arc<Mutex<HashMap<String, Vec<bool>>>>;

/// The server; ends with the runtime of the test.
pub(super) struct Fake {
    address: SocketAddr,
    shows: Shows,
    /// Told when a reservation waits for a permit.
    pub(crate) held: Arc<Notify>,
}

impl Fake {
    /// A server with a state of its own.
    pub(super) async fn start(faults: Faults) -> Self {
        Self::on(Shows::default(), faults).await
    }

    /// Another server on the same state.
    pub(super) async fn beside(&self, faults: Faults) -> Self {
        Self::on(Arc::clone(&self.shows), faults).await
    }

    async fn on(shows: Shows, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(Notify::new());
        let serving = Arc::new(Serving {
            shows: Arc::clone(&shows),
            held: Arc::clone(&held),
            faults,
            requests: AtomicU64::new(0),
            reservations: AtomicU64::new(0),
        });
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                let serving = Arc::clone(&serving);
                let service = service_fn(move |request| {
                    let serving = Arc::clone(&serving);
                    async move { serving.serve(request).await }
                });
                let connection = http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(socket), service));
            }
        });
        Self {
            address,
            shows,
            held,
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

struct Serving {
    shows: Shows,
    held: Arc<Notify>,
    faults: Faults,
    requests: AtomicU64,
    reservations: AtomicU64,
}

impl Serving {
    /// An error closes the connection without an answer.
    async fn serve(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Box<dyn Error + Send + Sync>> {
        let (head, body) = request.into_parts();
        let body = String::from_utf8(body.collect().await?.to_bytes().into())?;
        let count = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = |every: Option<u64>| every.is_some_and(|every| count.is_multiple_of(every));
        if let Some((_, time)) = self.faults.stall.filter(|(at, _)| *at == count) {
            // The one thread of the test serves all connections.
            std::thread::sleep(time);
        }
        if let Some(hold) = self
            .faults
            .hold
            .as_ref()
            .filter(|_| head.method == Method::PATCH)
        {
            self.held.notify_one();
            let _ = hold.acquire().await?;
        }
        let (status, text) = match () {
            () if is_due(self.faults.refuse_every) => (503, "OVERLOADED".to_owned()),
            () if is_due(self.faults.fail_every) => (500, "BROKEN".to_owned()),
            () => self.handle(head.method.as_str(), head.uri.path(), &body),
        };
        if is_due(self.faults.silent_every) {
            return Err("silent".into());
        }
        let mut answer = Response::builder().status(status);
        if is_due(self.faults.close_every) {
            answer = answer.header("connection", "close");
        }
        Ok(answer.body(Full::new(text.into()))?)
    }

    fn handle(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let mut shows = self.shows.lock().unwrap();
        match (method, parts.as_slice()) {
            ("POST", ["shows"]) => {
                let wish: Value = serde_json::from_str(body).unwrap();
                let seats = usize::try_from(wish["maxSeats"].as_u64().unwrap()).unwrap();
                let id = wish["showId"].as_str().unwrap().to_owned();
                match shows.insert(id, vec![false; seats]) {
                    None => (201, "Show created".into()),
                    Some(_) => (409, "SHOW_ALREADY_EXISTS".into()),
                }
            }
            ("GET", ["shows", id]) => match shows.get(*id) {
                Some(seats) => (200, self.document(id, seats)),
                None => (404, String::new()),
            },
            ("PATCH", ["shows", id, "seats", seat]) => {
                let Some(seats) = shows.get_mut(*id) else {
                    return (400, "SHOW_NOT_EXISTS".into());
                };
                match seats.get_mut(seat.parse::<usize>().unwrap()) {
                    Some(seat) => self.change(seat, body),
                    None => (400, "SEAT_NOT_EXISTS".into()),
                }
            }
            _ => (404, String::new()),
        }
    }

    fn change(&self, seat: &mut bool, body: &str) -> (u16, String) {
        if body.contains("CANCEL_RESERVATION") {
            return match std::mem::replace(seat, false) {
                true => (202, String::new()),
                false => (400, "SEAT_NOT_RESERVED".into()),
            };
        }
        let number = self.reservations.fetch_add(1, Ordering::Relaxed) + 1;
        let sells = self.faults.sell_twice.is_some_and(|from| number >= from);
        if *seat && !sells {
            return (400, "SEAT_NOT_AVAILABLE".into());
        }
        *seat = self.faults.lose != Some(number);
        (202, String::new())
    }

    fn document(&self, id: &str, seats: &[bool]) -> String {
        let seat = |(number, reserved): (usize, &bool)| match *reserved && !self.faults.stale_reads
        {
            true => json!({"number": number, "status": "RESERVED", "price": "100.00"}),
            false => json!({"number": number, "status": "AVAILABLE", "price": "100.00"}),
        };
        let seats: Vec<Value> = seats.iter().enumerate().map(seat).collect();
        json!({"id": id, "title": "x", "seats": seats}).to_string()
    }
}
