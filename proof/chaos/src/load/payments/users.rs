//! The load of one round: users who reserve seats, and pay them in time, about the time at which they are given back,
//! too late or not at all, or cancel them and reserve them again; through all nodes, with an idempotency key for each
//! command, which is sent again until there is an answer. That none comes although all is healed is a finding.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_kit::history::payments::{
    Deed, SeatCommand, SeatReply, SeatRound, SeatSight, ShowRead, ShowSeat,
};
use gesta_load::machine::http::Connection;
use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use hyper::Method;
use serde::Deserialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Shows of a round at least, and for each user, and their seats: so many that not all are paid in the end.
const SHOWS_MIN: usize = 50;
const SHOWS_OF_USER: usize = 5;
const SEATS: u32 = 100;
/// An attempt without an answer for so long has failed.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Pause before it is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The shortest and the longest pause of a user.
const PAUSE_MILLIS: (u64, u64) = (50, 500);
/// So many seats that were reserved last are asked for again.
const RECENT: usize = 32;

/// What the seat was, if this is the answer by which the cinema refuses the command for that reason: a line that begins
/// with the name of the reason. Other commands have other reasons (`cinema/src/domain.rs`).
fn refused_since(deed: Deed, answer: &str) -> Option<SeatSight> {
    let is_of_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let name = answer.split(|c: char| !is_of_name(c)).next()?;
    match (deed, name) {
        (Deed::Reserve, "SEAT_NOT_AVAILABLE") => Some(SeatSight::Held),
        (Deed::Pay | Deed::Cancel, "SEAT_NOT_RESERVED") => Some(SeatSight::Free),
        (Deed::Pay | Deed::Cancel, "SEAT_PAID") => Some(SeatSight::Paid),
        _ => None,
    }
}

/// What each user got done since somebody began to count.
struct Progress {
    since: Instant,
    done: Vec<u64>,
}

impl Progress {
    fn new(users: usize) -> Self {
        Self {
            since: Instant::now(),
            done: vec![0; users],
        }
    }

    /// A command of a user that was begun then has ended so.
    fn note(&mut self, user: usize, begun: Instant, reply: SeatReply) {
        // A node that changes nothing may refuse all the same.
        if reply == SeatReply::Done && begun >= self.since {
            self.done[user] += 1;
        }
    }

    /// The users who had fewer commands done.
    fn behind(&self, least: u64) -> Vec<usize> {
        let done = self.done.iter().enumerate();
        done.filter(|(_, done)| **done < least)
            .map(|(user, _)| user)
            .collect()
    }
}

/// What all users of a round share.
pub(super) struct Common {
    nodes: Vec<SocketAddr>,
    shows: Vec<Uuid>,
    pay_within: Duration,
    /// How long an answer is waited for once all is healed.
    patience: Duration,
    prefix: String,
    /// Orders beginnings and ends of requests.
    ticks: AtomicU64,
    keys: AtomicU64,
    progress: Mutex<Progress>,
    recent: Mutex<VecDeque<ShowSeat>>,
    told: Mutex<SeatRound>,
    pub(super) over: CancellationToken,
}

/// A seat in the document of a show.
#[derive(Deserialize)]
struct SeatDocument {
    status: String,
}

#[derive(Deserialize)]
struct ShowDocument {
    seats: Vec<SeatDocument>,
}

impl Common {
    fn new(
        nodes: Vec<SocketAddr>,
        users: usize,
        pay_within: Duration,
        patience: Duration,
        seed: u64,
    ) -> Self {
        let mut random = Random::fork(seed ^ Uuid::new_v4().as_u64_pair().0, 5);
        let prefix = format!("user-{:016x}-", random.next());
        let shows = SHOWS_MIN.max(users * SHOWS_OF_USER);
        Self {
            nodes,
            shows: (0..shows).map(|_| random.uuid()).collect(),
            pay_within,
            patience,
            prefix: prefix.clone(),
            ticks: AtomicU64::new(1),
            keys: AtomicU64::default(),
            progress: Mutex::new(Progress::new(users)),
            recent: Mutex::default(),
            told: Mutex::new(SeatRound {
                prefix,
                ..SeatRound::default()
            }),
            over: CancellationToken::new(),
        }
    }

    /// Makes the shows of a round of so many users, through the nodes at these addresses.
    pub(super) async fn prepare(
        nodes: Vec<SocketAddr>,
        users: usize,
        pay_within: Duration,
        patience: Duration,
        seed: u64,
    ) -> Result<Arc<Self>> {
        let common = Arc::new(Self::new(nodes, users, pay_within, patience, seed));
        let made = (0..common.nodes.len()).map(|at| {
            let common = Arc::clone(&common);
            async move { common.make_shows(at).await }
        });
        futures::future::try_join_all(made).await?;
        Ok(common)
    }

    /// Makes each so many shows.
    async fn make_shows(self: &Arc<Self>, at: usize) -> Result<()> {
        let mut user = User::new(self, at, 0);
        for show in self.shows.iter().skip(at).step_by(self.nodes.len()) {
            let body = format!(r#"{{"showId":"{show}","title":"Ran","maxSeats":{SEATS}}}"#);
            let begun = Instant::now();
            while !matches!(
                user.ask(Method::POST, "/shows", body.clone().into(), None)
                    .await,
                Some((201 | 409, _))
            ) {
                if begun.elapsed() > self.patience {
                    return fail("a show could not be created");
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        Ok(())
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    /// Begins to count what each user gets done.
    pub(super) fn count_anew(&self) {
        let mut progress = self.progress.lock().unwrap();
        *progress = Progress::new(progress.done.len());
    }

    /// The users who had fewer commands done that they began since then.
    pub(super) fn behind(&self, least: u64) -> Vec<usize> {
        self.progress.lock().unwrap().behind(least)
    }

    /// Reads all shows through all nodes, and gives all replies of the round.
    pub(super) async fn finish(self: &Arc<Self>) -> Result<SeatRound> {
        let reads = (0..self.nodes.len()).map(|at| async move {
            let mut user = User::new(self, at, 0);
            for show in &self.shows {
                let begun = Instant::now();
                while !user.read(at, *show).await {
                    if begun.elapsed() > self.patience {
                        return fail(format!("show {show} could not be read at the end"));
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
            Ok(())
        });
        futures::future::try_join_all(reads).await?;
        Ok(std::mem::take(&mut *self.told.lock().unwrap()))
    }
}

/// What is to be done with a seat later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    Pay,
    /// It is paid, and then somebody tries to cancel it.
    PayAndCancel,
    Cancel,
    /// It is cancelled, and reserved again at once.
    CancelAndReserve,
}

/// A user.
pub(super) struct User {
    common: Arc<Common>,
    number: usize,
    connections: Vec<Option<Connection>>,
    /// The node that is asked.
    at: usize,
    random: Random,
    later: BinaryHeap<Reverse<(Instant, ShowSeat, Later)>>,
}

impl User {
    pub(super) fn new(common: &Arc<Common>, number: usize, seed: u64) -> Self {
        Self {
            common: Arc::clone(common),
            number,
            connections: common.nodes.iter().map(|_| None).collect(),
            at: number % common.nodes.len(),
            random: Random::fork(seed, number as u64),
            later: BinaryHeap::new(),
        }
    }

    /// Until the round is over.
    pub(super) async fn run(mut self) {
        let over = self.common.over.clone();
        while !over.is_cancelled() {
            let is_due =
                |Reverse((at, ..)): &Reverse<(Instant, ShowSeat, Later)>| *at <= Instant::now();
            if self.later.peek().is_some_and(is_due)
                && let Some(Reverse((_, seat, later))) = self.later.pop()
            {
                self.go_on(seat, later).await;
            } else if self.random.below(4) == 0 {
                let show = self.common.shows[self.random.below(self.common.shows.len())];
                self.read(self.at, show).await;
            } else {
                let seat = self.choose();
                self.reserve(seat).await;
            }
            let (from, to) = PAUSE_MILLIS;
            let pause = Duration::from_millis(from + self.random.next() % (to - from));
            let _ = timeout(pause, over.cancelled()).await;
        }
    }

    fn choose(&mut self) -> ShowSeat {
        let show = self.common.shows[self.random.below(self.common.shows.len())];
        let number = u32::try_from(self.random.below(SEATS as usize)).unwrap_or_default();
        let recent = self.common.recent.lock().unwrap();
        if self.random.below(4) == 0 && !recent.is_empty() {
            return recent[self.random.below(recent.len())];
        }
        ShowSeat { show, number }
    }

    async fn reserve(&mut self, seat: ShowSeat) {
        if self.command(Deed::Reserve, seat).await != SeatReply::Done {
            return;
        }
        {
            let mut recent = self.common.recent.lock().unwrap();
            recent.truncate(RECENT - 1);
            recent.push_front(seat);
        }
        let within = self.common.pay_within;
        let part = self.random.fraction();
        let (wait, later) = match self.random.below(20) {
            0..=5 => (within.mul_f64(part * 0.6), Later::Pay),
            6..=7 => (within.mul_f64(part * 0.6), Later::PayAndCancel),
            8..=10 => (within.mul_f64(0.8 + part * 0.4), Later::Pay),
            11 => (within.mul_f64(1.5 + part), Later::Pay),
            12..=13 => (within.mul_f64(part), Later::Cancel),
            14..=15 => (within.mul_f64(part), Later::CancelAndReserve),
            // Nobody pays it.
            _ => return,
        };
        self.later
            .push(Reverse((Instant::now() + wait, seat, later)));
    }

    async fn go_on(&mut self, seat: ShowSeat, later: Later) {
        match later {
            Later::Pay => {
                self.command(Deed::Pay, seat).await;
            }
            Later::PayAndCancel => {
                self.command(Deed::Pay, seat).await;
                self.command(Deed::Cancel, seat).await;
            }
            Later::Cancel => {
                self.command(Deed::Cancel, seat).await;
            }
            Later::CancelAndReserve => {
                self.command(Deed::Cancel, seat).await;
                self.reserve(seat).await;
            }
        }
    }

    /// Sends a command until there is an answer.
    async fn command(&mut self, deed: Deed, seat: ShowSeat) -> SeatReply {
        let common = Arc::clone(&self.common);
        let number = common.keys.fetch_add(1, Ordering::Relaxed);
        let key = format!("{}{number}", common.prefix);
        let path = format!("/shows/{}/seats/{}", seat.show, seat.number);
        let body = match deed {
            Deed::Reserve => r#"{"action":"RESERVE"}"#,
            Deed::Pay => r#"{"action":"PAY"}"#,
            Deed::Cancel => r#"{"action":"CANCEL_RESERVATION"}"#,
        };
        let (first, mut in_doubt, mut over_since) = (common.tick(), false, None);
        let begun = Instant::now();
        loop {
            let begin = common.tick();
            let asked = self.ask(
                Method::PATCH,
                &path,
                Bytes::from_static(body.as_bytes()),
                Some(&key),
            );
            let answer = asked.await;
            let end = common.tick();
            let refused = |body: &Bytes| refused_since(deed, &String::from_utf8_lossy(body));
            let reply = match &answer {
                Some((202, _)) => Some(SeatReply::Done),
                Some((400, body)) if refused(body).is_some() => {
                    refused(body).map(SeatReply::Refused)
                }
                Some((503, _)) => None,
                None | Some((500 | 504, _)) => {
                    in_doubt = true;
                    None
                }
                Some((status, body)) => {
                    let text = format!("seat {seat}: {deed:?} by {key}: {status} {body:?}");
                    common.told.lock().unwrap().strange.push(text);
                    Some(SeatReply::Open)
                }
            };
            let is_over = common.over.is_cancelled();
            let since = is_over.then(|| *over_since.get_or_insert_with(Instant::now));
            let is_given_up = since.is_some_and(|since| since.elapsed() > common.patience);
            if reply.is_none() && is_given_up {
                let (last, patience) = (answer.map(|(status, _)| status), common.patience);
                let text = format!(
                    "seat {seat}: {deed:?} by {key} had no answer {patience:.0?} after the end, at last {last:?}"
                );
                common.told.lock().unwrap().given_up.push(text);
            }
            if let Some(reply) = reply.or(is_given_up.then_some(SeatReply::Open)) {
                common.told.lock().unwrap().asked.push(SeatCommand {
                    key,
                    seat,
                    deed,
                    first,
                    begin,
                    end,
                    in_doubt,
                    reply,
                });
                let mut progress = common.progress.lock().unwrap();
                progress.note(self.number, begun, reply);
                return reply;
            }
            self.at = (self.at + 1) % self.connections.len();
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Reads a show through a node; true if it was answered.
    async fn read(&mut self, node: usize, show: Uuid) -> bool {
        let common = Arc::clone(&self.common);
        self.at = node;
        let begin = common.tick();
        let path = format!("/shows/{show}");
        let answer = self.ask(Method::GET, &path, Bytes::new(), None).await;
        let end = common.tick();
        let mut told = common.told.lock().unwrap();
        match answer {
            Some((200, body)) => match seats_of(&body) {
                Some(seats) => told.reads.push(ShowRead {
                    show,
                    begin,
                    end,
                    seats,
                }),
                None => told.strange.push(format!("show {show}: {body:?}")),
            },
            None | Some((500..=599, _)) => {
                drop(told);
                self.at = (self.at + 1) % self.connections.len();
                return false;
            }
            Some((status, body)) => {
                told.strange.push(format!("show {show}: {status} {body:?}"));
            }
        }
        true
    }

    /// Asks the present node once; none if there is no answer.
    async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        key: Option<&str>,
    ) -> Option<(u16, Bytes)> {
        let place = &mut self.connections[self.at];
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => {
                let opened = Connection::open(self.common.nodes[self.at]);
                timeout(CONNECT_MAX, opened).await.ok()?.ok()?
            }
        };
        let asked = async {
            match key {
                Some(key) => connection.ask_once(key, method, path, body).await,
                None => connection.ask(method, path, body).await,
            }
        };
        let answer = timeout(ANSWER_MAX, asked).await.ok()?.ok()?;
        *place = Some(connection);
        Some(answer)
    }
}

/// The seats of the document of a show.
fn seats_of(body: &[u8]) -> Option<Vec<SeatSight>> {
    let show: ShowDocument = serde_json::from_slice(body).ok()?;
    let seats = show.seats.iter().map(|seat| match seat.status.as_str() {
        "AVAILABLE" => Some(SeatSight::Free),
        "RESERVED" => Some(SeatSight::Reserved),
        "PAID" => Some(SeatSight::Paid),
        _ => None,
    });
    let seats: Option<Vec<SeatSight>> = seats.collect();
    seats.filter(|seats| seats.len() == SEATS as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what goes on is what each user gets done of what was begun since: not what is refused, nor what was begun
    /// before, nor what others do.
    #[test]
    fn each_user_must_get_something_done() {
        let before = Instant::now();
        let mut progress = Progress::new(2);
        progress.since = before + Duration::from_secs(1);
        let later = before + Duration::from_secs(2);
        (0..9).for_each(|_| progress.note(0, later, SeatReply::Done));
        progress.note(1, before, SeatReply::Done);
        progress.note(1, later, SeatReply::Refused(SeatSight::Held));
        progress.note(1, later, SeatReply::Open);
        assert_eq!(progress.behind(1), [1]);
        progress.note(1, later, SeatReply::Done);
        assert_eq!(progress.behind(1), [0; 0]);
        assert_eq!(progress.behind(2), [1]);
    }

    /// Goal: a command that is never answered although the round is over is told as such.
    #[tokio::test]
    async fn a_command_that_nobody_answers_is_a_finding() {
        let nobody = gesta_rig::free_address().unwrap();
        let common = Common::new(vec![nobody], 1, Duration::ZERO, Duration::ZERO, 7);
        let common = Arc::new(common);
        common.over.cancel();
        let mut user = User::new(&common, 0, 7);
        let seat = user.choose();
        assert_eq!(user.command(Deed::Reserve, seat).await, SeatReply::Open);
        let told = common.told.lock().unwrap();
        assert_eq!(told.asked.len(), 1);
        assert_eq!(told.given_up.len(), 1, "{:?}", told.given_up);
        assert_eq!(common.behind(1), [0]);
    }

    /// Goal: an answer says something about a seat only if it is one of those by which the cinema refuses this very
    /// command; all others are findings.
    #[test]
    fn only_the_reason_of_the_command_tells_of_the_seat() {
        let all = [Deed::Reserve, Deed::Pay, Deed::Cancel];
        for (answer, saw) in [
            ("SEAT_NOT_AVAILABLE", [Some(SeatSight::Held), None, None]),
            (
                "SEAT_NOT_RESERVED",
                [None, Some(SeatSight::Free), Some(SeatSight::Free)],
            ),
            (
                "SEAT_PAID",
                [None, Some(SeatSight::Paid), Some(SeatSight::Paid)],
            ),
            (
                "SEAT_PAID: long ago",
                [None, Some(SeatSight::Paid), Some(SeatSight::Paid)],
            ),
            ("SEAT_NOT_EXISTS", [None; 3]),
            ("SHOW_NOT_EXISTS", [None; 3]),
            ("INVALID_BODY: no SEAT_PAID", [None; 3]),
            ("SEAT_PAID_TWICE", [None; 3]),
            ("", [None; 3]),
        ] {
            assert_eq!(all.map(|deed| refused_since(deed, answer)), saw, "{answer}");
        }
    }
}
