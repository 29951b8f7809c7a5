//! Visitors of a cinema that moves: they reserve seats, and give some back, one call after the other.
//!
//! Each call has a key of its own, and is made until it is answered, at whichever cinema answers; so each of them is
//! carried out once, wherever the store is meanwhile.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use gesta_kit::depth;
use serde_json::Value;

use crate::PAUSE;
use crate::answers::Answers;
use crate::support::cinema::{Answer, change, create, get, reserved};
use crate::support::wait_until;

const VISITORS: u32 = 4;
/// Seats of each show. All visitors want all of them.
const SEATS: u32 = 20;
/// The key with which every visitor creates the same show.
const CREATION: &str = "creation";

/// A seat: the number of the show, and its own.
type Seat = (u32, u32);

/// What was confirmed to a visitor.
#[derive(Default)]
struct Confirmed {
    /// How many reservations, also of seats that were given back.
    reservations: usize,
    /// The seats that it still has.
    held: BTreeSet<Seat>,
}

/// The visitors, at their work.
pub(crate) struct Visitors {
    stop: Arc<AtomicBool>,
    pub(crate) answers: Vec<Answers>,
    visits: Vec<JoinHandle<Confirmed>>,
}

impl Visitors {
    /// Of the cinemas at these addresses.
    pub(crate) fn start(addresses: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut answers, mut visits) = (Vec::new(), Vec::new());
        for number in 0..VISITORS {
            let visitor = Visitor {
                number,
                addresses: addresses.to_vec(),
                at: 0,
                stop: Arc::clone(&stop),
                answers: Answers::new(),
            };
            answers.push(visitor.answers.clone());
            visits.push(std::thread::spawn(move || visitor.visit()));
        }
        Self {
            stop,
            answers,
            visits,
        }
    }

    /// Stops, and compares what was confirmed with what the cinema at this address shows. Returns how many reservations
    /// were confirmed.
    pub(crate) fn check(self, address: &str) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        let (mut held, mut reservations) = (BTreeSet::new(), 0);
        for visit in self.visits {
            let confirmed = visit.join().unwrap();
            reservations += confirmed.reservations;
            for seat in confirmed.held {
                assert!(held.insert(seat), "{seat:?} was given to two visitors");
            }
        }
        let (mut shown, mut seats) = (BTreeSet::<Seat>::new(), 0);
        for show in 0.. {
            let answer = get(address, &format!("/shows/{}", id_of(show))).unwrap();
            if answer.status == 404 {
                break;
            }
            shown.extend(reserved(&answer).into_iter().map(|seat| (show, seat)));
            seats += u64::from(SEATS);
        }
        assert_eq!(held, shown, "confirmed, and shown");
        // The read model did not move: it is made again. Under load it takes its time.
        if depth::count(false, true) {
            let free = seats - held.len() as u64;
            wait_until("the read model is made again", || {
                free_seats(address) == free
            });
        }
        eprintln!(
            "{reservations} reservations were confirmed, {} seats are left to visitors",
            held.len()
        );
        reservations
    }
}

/// How many seats are free by the read model.
fn free_seats(address: &str) -> u64 {
    let rows = get(address, "/available-seats?limit=1000").unwrap();
    let rows: Vec<Value> = serde_json::from_str(&rows.body).unwrap();
    let free = rows.iter().map(|row| row["availableSeats"].as_u64());
    free.map(Option::unwrap).sum()
}

fn id_of(show: u32) -> String {
    format!("01890a5d-ac96-774b-bcce-{show:012}")
}

struct Visitor {
    number: u32,
    addresses: Vec<String>,
    /// Which of the addresses is asked.
    at: usize,
    stop: Arc<AtomicBool>,
    answers: Answers,
}

impl Visitor {
    fn visit(mut self) -> Confirmed {
        let mut confirmed = Confirmed::default();
        for show in 0.. {
            let id = id_of(show);
            let created = self.answer(|at| create(at, &id, SEATS, CREATION));
            assert_eq!(created.status, 201, "{created:?}");
            // Each begins with another seat.
            let first = SEATS / VISITORS * self.number;
            for seat in (first..first + SEATS).map(|seat| seat % SEATS) {
                if self.stop.load(Ordering::SeqCst) {
                    return confirmed;
                }
                if self.is_confirmed(&id, seat, "RESERVE") {
                    confirmed.reservations += 1;
                    if seat % 3 > 0 {
                        confirmed.held.insert((show, seat));
                    } else {
                        assert!(self.is_confirmed(&id, seat, "CANCEL_RESERVATION"));
                    }
                }
            }
        }
        confirmed
    }

    /// Whether a seat was reserved, or given back; otherwise it is that of another visitor.
    fn is_confirmed(&mut self, show: &str, seat: u32, action: &str) -> bool {
        let key = format!("{} {seat} {action}", self.number);
        let answer = self.answer(|at| change(at, (show, seat), action, &key));
        let is_confirmed = answer.status == 202;
        let is_taken = answer.status == 400 && answer.body == "SEAT_NOT_AVAILABLE";
        assert!(is_confirmed || is_taken, "{answer:?}");
        is_confirmed
    }

    /// Makes a call at one cinema after the other until it is answered.
    fn answer(&mut self, call: impl Fn(&str) -> std::io::Result<Answer>) -> Answer {
        loop {
            match call(&self.addresses[self.at]) {
                Ok(answer) if answer.status < 500 => {
                    self.answers.note();
                    return answer;
                }
                Ok(answer) => assert!([503, 504].contains(&answer.status), "{answer:?}"),
                // It was not started yet, or was killed.
                Err(_) => {}
            }
            self.at = (self.at + 1) % self.addresses.len();
            std::thread::sleep(PAUSE);
        }
    }
}

/// The command of a cinema on a store.
pub(crate) fn cinema(program: &Path, store: &str, address: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--store", store, "--listen", address]);
    command.stdin(Stdio::null());
    command
}

/// A cinema whose store has moved says where to, confirms nothing, and is not healthy.
pub(crate) fn says_where_its_store_is(address: &str, place: &str) {
    let show = id_of(999_999);
    for answer in [
        create(address, &show, SEATS, CREATION),
        change(address, (&id_of(0), 0), "RESERVE", "late"),
        get(address, &format!("/shows/{}", id_of(0))),
        get(address, "/health"),
    ] {
        let answer = answer.unwrap();
        let says_so = answer.body.contains("the store has moved to") && answer.body.contains(place);
        assert!(answer.status == 503 && says_so, "{answer:?}");
    }
}
