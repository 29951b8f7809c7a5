//! A small cinema in memory that can be told to misbehave; for tests.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What goes wrong, counted in requests that change something.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// Acknowledges this reservation and forgets it.
    pub(crate) lose: Option<u64>,
    /// Accepts every reservation of a held seat from this one on.
    pub(crate) sell_twice: Option<u64>,
    /// Reads show every seat free.
    pub(crate) stale_reads: bool,
    /// Before answering this request stops everything for so long.
    pub(crate) stall: Option<(u64, Duration)>,
    /// Closes the connection after each so many answers.
    pub(crate) close_every: Option<u64>,
    /// Does what is asked and closes the connection without an answer, each so many requests.
    pub(crate) silent_every: Option<u64>,
    /// Refuses each so many requests as overloaded.
    pub(crate) refuse_every: Option<u64>,
}

type Shows = Arc<Mutex<HashMap<String, Vec<bool>>>>;

/// The server; ends when it is dropped.
pub(crate) struct Fake {
    address: SocketAddr,
    shows: Shows,
    over: Arc<AtomicBool>,
}

impl Fake {
    /// A server with a state of its own.
    pub(crate) fn start(faults: Faults) -> Self {
        Self::on(Shows::default(), faults)
    }

    /// Another server on the same state.
    pub(crate) fn beside(&self, faults: Faults) -> Self {
        Self::on(Arc::clone(&self.shows), faults)
    }

    fn on(shows: Shows, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (state, ended) = (Arc::clone(&shows), Arc::clone(&over));
        let serving = Arc::new(Serving {
            shows: state,
            faults,
            count: AtomicU64::new(0),
            reservations: AtomicU64::new(0),
            stalled: Mutex::new(()),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let serving = Arc::clone(&serving);
                std::thread::spawn(move || {
                    // Ends with the connection.
                    let _ = serving.serve(stream.unwrap());
                });
            }
        });
        Self {
            address,
            shows,
            over,
        }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

struct Serving {
    shows: Shows,
    faults: Faults,
    count: AtomicU64,
    reservations: AtomicU64,
    stalled: Mutex<()>,
}

impl Serving {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut out = stream.try_clone()?;
        let mut input = BufReader::new(stream);
        let mut answered = 0;
        let each =
            |every: Option<u64>, count: u64| every.is_some_and(|every| count.is_multiple_of(every));
        loop {
            let mut head = String::new();
            if input.read_line(&mut head)? == 0 {
                return Ok(());
            }
            let mut length = 0;
            loop {
                let mut line = String::new();
                input.read_line(&mut line)?;
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut body = vec![0; length];
            input.read_exact(&mut body)?;
            let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
            self.stall(count);
            let refuses = each(self.faults.refuse_every, count);
            let (status, text) = if refuses {
                (503, "OVERLOADED".to_owned())
            } else {
                self.handle(&head, &String::from_utf8(body).unwrap())
            };
            if each(self.faults.silent_every, count) {
                return Ok(());
            }
            answered += 1;
            let closes = each(self.faults.close_every, answered);
            Self::write(&mut out, status, &text, closes)?;
            if closes {
                return Ok(());
            }
        }
    }

    /// One request of the stall sleeps; all others wait for it.
    fn stall(&self, count: u64) {
        let Some((at, time)) = self.faults.stall else {
            return;
        };
        let guard = self.stalled.lock().unwrap();
        if count == at {
            std::thread::sleep(time);
        }
        drop(guard);
    }

    fn handle(&self, head: &str, body: &str) -> (u16, String) {
        let words: Vec<&str> = head.split(' ').collect();
        let parts: Vec<&str> = words[1].split('/').collect();
        let mut shows = self.shows.lock().unwrap();
        match (words[0], parts.as_slice()) {
            ("POST", ["", "shows"]) => {
                let wish: serde_json::Value = serde_json::from_str(body).unwrap();
                let seats = usize::try_from(wish["maxSeats"].as_u64().unwrap()).unwrap();
                let id = wish["showId"].as_str().unwrap().to_owned();
                if shows.contains_key(&id) {
                    return (409, "SHOW_ALREADY_EXISTS".into());
                }
                shows.insert(id, vec![false; seats]);
                (201, "Show created".into())
            }
            ("GET", ["", "shows", id]) => match shows.get(*id) {
                Some(seats) => (200, self.document(id, seats)),
                None => (404, String::new()),
            },
            ("PATCH", ["", "shows", id, "seats", seat]) => {
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
            if !*seat {
                return (400, "SEAT_NOT_RESERVED".into());
            }
            *seat = false;
            return (202, String::new());
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
        let seats: Vec<serde_json::Value> = seats
            .iter()
            .enumerate()
            .map(|(i, reserved)| {
                let reserved = *reserved && !self.faults.stale_reads;
                let status = if reserved { "RESERVED" } else { "AVAILABLE" };
                serde_json::json!({"number": i, "status": status, "price": "100.00"})
            })
            .collect();
        serde_json::json!({"id": id, "title": "x", "seats": seats}).to_string()
    }

    fn write(out: &mut TcpStream, status: u16, text: &str, closes: bool) -> std::io::Result<()> {
        let connection = if closes { "connection: close\r\n" } else { "" };
        let length = text.len();
        let answer =
            format!("HTTP/1.1 {status} X\r\n{connection}content-length: {length}\r\n\r\n{text}");
        out.write_all(answer.as_bytes())
    }
}
