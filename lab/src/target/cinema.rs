//! Any server with the HTTP interface of the cinema as a target: a whole application, with entities behind it.
//!
//! A stream is a show, its first event the creation of the show, each further one a reservation of the next seat. The
//! application decides what it stores, so contents and sizes are its own; the check knows each event by its place.
//! Not here: scenarios of users and the proof of every answer (`reservation`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::socket::Connection;
use super::{Append, AppendError, Session, Stored, Target, TargetFacts};
use crate::failure::{Result, fail};
use crate::reservation::{Call, Fact, Op, Outcome, SEATS_MAX, Shows, judge, probe, write_request};
use crate::workload::Run;

/// Most seats of a show, so most events of a stream but one.
const SEATS: u16 = SEATS_MAX;
/// Times that a read is asked for while the server is overloaded.
const TRIES: u32 = 100;
/// Pause in between.
const PAUSE: Duration = Duration::from_millis(20);

/// A cinema behind an address.
#[derive(Debug)]
pub struct CinemaTarget {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shows: Shows,
    /// Streams in the order of their shows, with the marks of their events.
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    numbers: HashMap<String, u32>,
    marks: Vec<(String, Vec<String>)>,
}

impl CinemaTarget {
    /// The server at this address; asks it whether it is a cinema and leaves one show behind.
    ///
    /// # Errors
    /// It is none, or gives no answer.
    pub fn find(address: SocketAddr) -> Result<Self> {
        let shows = probe(address, Run::random().number(), SEATS)?;
        let streams = Mutex::default();
        Ok(Self {
            address,
            shared: Arc::new(Shared { shows, streams }),
        })
    }

    async fn session(&self) -> Result<CinemaSession> {
        Ok(CinemaSession {
            connection: Connection::open(self.address).await?,
            host: self.address.to_string(),
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Shared {
    /// The number of the stream's show; a new stream gets the next.
    fn show(&self, stream: &str, append: &Append<'_>) -> u32 {
        let mut streams = self.streams.lock().expect("no panic under the lock");
        let next = u32::try_from(streams.marks.len()).expect("fewer shows than numbers");
        let number = *streams.numbers.entry(stream.to_owned()).or_insert(next);
        if number == next {
            streams.marks.push((stream.to_owned(), Vec::new()));
        }
        let index = usize::try_from(number).expect("an index");
        let marks = &mut streams.marks[index].1;
        // A second try names the same events again.
        marks.truncate(usize::try_from(append.revision).expect("an index"));
        marks.extend(
            append
                .events
                .iter()
                .map(|event| event.id.as_simple().to_string()),
        );
        number
    }
}

#[async_trait]
impl Target for CinemaTarget {
    fn name(&self) -> &'static str {
        "cinema"
    }

    fn title(&self) -> &'static str {
        "Cinema, an application of entities behind HTTP"
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn facts(&self) -> Result<TargetFacts> {
        Ok(TargetFacts {
            engine: format!("a cinema at {}", self.address),
            durability: "full".into(),
            durability_detail: "as the application was configured; the lab cannot see it".into(),
            note: "each event is a command over HTTP; contents and sizes are the application's own"
                .into(),
        })
    }

    async fn connect(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(self.session().await?))
    }

    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let mut session = self.session().await?;
        let marks = {
            let streams = self.shared.streams.lock().expect("no panic under the lock");
            streams.marks.clone()
        };
        for (show, (stream, marks)) in (0..).zip(marks) {
            if !stream.starts_with(prefix) {
                continue;
            }
            let op = Op {
                call: Call::Read,
                show,
                seat: 0,
            };
            let (outcome, fact, status) = session.insist(op).await?;
            let seats = match (outcome, fact) {
                (Outcome::Accepted, Fact::Seats(seats)) => seats,
                (_, Fact::Absent) => continue,
                _ => return fail(format!("reading a show was answered {status}")),
            };
            // Revision 0 is the show itself, revision n the seat n - 1.
            let there = |revision: u64| revision == 0 || seats >> (revision - 1) & 1 == 1;
            for (revision, mark) in (0..).zip(marks).filter(|(revision, _)| there(*revision)) {
                see(Stored {
                    stream: stream.clone(),
                    revision,
                    mark,
                    bytes: None,
                    whole: None,
                });
            }
        }
        Ok(())
    }

    async fn disk_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    async fn remove(&self) -> Result<()> {
        Ok(())
    }
}

struct CinemaSession {
    connection: Connection,
    /// What the header names.
    host: String,
    shared: Arc<Shared>,
}

#[async_trait]
impl Session for CinemaSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        let show = self.shared.show(append.stream, append);
        if append.events.len() != 1 || append.revision > u64::from(SEATS) {
            return Err(AppendError::Failed(format!(
                "a cinema takes one event at a time, at most {SEATS} seats per show"
            )));
        }
        let op = match u16::try_from(append.revision) {
            Ok(0) | Err(_) => Op {
                call: Call::Create,
                show,
                seat: 0,
            },
            Ok(revision) => Op {
                call: Call::Reserve,
                show,
                seat: revision - 1,
            },
        };
        match self.ask(op).await {
            Ok((Outcome::Accepted, ..)) => Ok(()),
            Ok((Outcome::Refused, _, status)) => Err(AppendError::Retry(status.to_string())),
            Ok((Outcome::Rejected, _, status)) => {
                Err(AppendError::Failed(format!("status {status}")))
            }
            Ok((Outcome::Failed, _, status)) => {
                Err(AppendError::Unknown(format!("status {status}")))
            }
            Err(failure) => Err(AppendError::Unknown(failure.0)),
        }
    }
}

impl CinemaSession {
    /// Asks again while the server is overloaded.
    async fn insist(&mut self, op: Op) -> Result<(Outcome, Fact, u16)> {
        for _ in 0..TRIES {
            let answer = self.ask(op).await?;
            if answer.0 != Outcome::Refused {
                return Ok(answer);
            }
            tokio::time::sleep(PAUSE).await;
        }
        fail(format!("the server was overloaded {TRIES} times in a row"))
    }

    async fn ask(&mut self, op: Op) -> Result<(Outcome, Fact, u16)> {
        let shows = &self.shared.shows;
        let mut request = Vec::new();
        write_request(&mut request, self.host.as_bytes(), op, shows);
        let judge = |status, body: &[u8]| {
            let judged = judge(op.call, status, body, shows);
            (judged.outcome, judged.fact, judged.status)
        };
        self.connection.ask(&request, judge).await
    }
}
