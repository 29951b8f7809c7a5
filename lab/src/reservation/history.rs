//! Can the answers be true? Every seat is held by at most one reservation at a time, and every answer fits one order of
//! all requests that respects which of them came before which.
//!
//! How: for each seat, the sets of effects that may have happened so far are carried along the starts and ends of its
//! requests (just-in-time linearization: Wing and Gong 1993, Lowe 2017). A seat has two states and few requests at a
//! time, so the sets stay tiny. A request without an answer may take effect at any later time, or never.
//! Invariant: no false alarm; what is too entangled to decide is counted as such.
//! Not here: what the store holds (`stored`). Seats are judged one by one, a read as one look at each of its seats.

use super::ledger::{Entry, Ledger, NEVER, Reading, What};

/// Most findings told in words.
const FINDINGS_MAX: usize = 10;
/// Requests about one seat at once that are told apart.
const OPEN_MAX: usize = 64;
/// Most possibilities kept in mind for a seat.
const WORLDS_MAX: usize = 4_096;

/// What the check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Seats that somebody asked for.
    pub(crate) seats: u64,
    /// Requests about seats, reads not counted.
    pub(crate) requests: u64,
    /// Requests without a known outcome.
    pub(crate) unknown: u64,
    /// Reads of shows.
    pub(crate) reads: u64,
    /// Accepted reservations of a seat that was held.
    pub(crate) held_twice: u64,
    /// Accepted cancellations of a seat that was free.
    pub(crate) cancelled_twice: u64,
    /// Answers during the run that show a state which had passed, or never was.
    pub(crate) stale: u64,
    /// Seats whose last state is not what was acknowledged.
    pub(crate) lost: u64,
    /// Seats with too much at once to decide.
    pub(crate) undecided: u64,
    /// The first findings in words.
    pub(crate) findings: Vec<String>,
}

/// Judges all requests. Reads that began after `last_from` are the look at the end of the run.
pub(crate) fn judge(ledger: &Ledger, last_from: u32) -> Judgement {
    let entries = ledger.sorted_entries();
    let readings = ledger.sorted_readings();
    let mut judgement = Judgement {
        requests: entries.len() as u64,
        unknown: entries.iter().filter(|entry| entry.end == NEVER).count() as u64,
        reads: readings.len() as u64,
        ..Judgement::default()
    };
    let mut seat = SeatCheck::default();
    let (mut entries, mut readings) = (entries.as_slice(), readings.as_slice());
    for show in 0..ledger.shows_asked() {
        let (of_show, rest) = split(readings, |reading| reading.show == show);
        readings = rest;
        for number in 0..ledger.shows.seats {
            let place = ledger.shows.place(show, number);
            let (of_seat, rest) = split(entries, |entry| entry.place == place);
            entries = rest;
            if of_seat.is_empty() && of_show.iter().all(|r| r.reserved >> number & 1 == 0) {
                continue;
            }
            judgement.seats += 1;
            seat.gather(of_seat, of_show, number);
            if let Some(fault) = seat.check() {
                count(&mut judgement, &fault, last_from);
                if judgement.findings.len() < FINDINGS_MAX {
                    let id = ledger.shows.id(show);
                    judgement
                        .findings
                        .push(format!("show {id} seat {number}: {fault}"));
                }
            }
        }
    }
    judgement
}

fn split<T>(sorted: &[T], belongs: impl Fn(&T) -> bool) -> (&[T], &[T]) {
    let end = sorted.iter().position(|one| !belongs(one));
    sorted.split_at(end.unwrap_or(sorted.len()))
}

fn count(judgement: &mut Judgement, fault: &Fault, last_from: u32) {
    match *fault {
        Fault::Impossible { what, begin } => match what {
            What::Reserved => judgement.held_twice += 1,
            What::Cancelled => judgement.cancelled_twice += 1,
            _ if begin > last_from => judgement.lost += 1,
            _ => judgement.stale += 1,
        },
        Fault::Entangled => judgement.undecided += 1,
    }
}

/// Why a seat's answers cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// This answer fits no order.
    Impossible {
        /// What was answered.
        what: What,
        /// When it was asked.
        begin: u32,
    },
    /// Too much at once.
    Entangled,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Fault::Impossible { what, begin } = self else {
            return f.write_str("too many requests at once to decide");
        };
        let said = match what {
            What::Reserved => "a reservation was accepted although the seat was held",
            What::Cancelled => "a cancellation was accepted although the seat was free",
            What::SeenReserved => "it was said to be reserved although it was free",
            What::SeenFree => "it was said to be free although it was reserved",
            What::MaybeReserved | What::MaybeCancelled => "an unknown outcome",
        };
        write!(f, "{said} (request {begin})")
    }
}

/// One thing that may be true: the state of the seat and which of the open requests have had their effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct World {
    reserved: bool,
    /// Reservations of unknown outcome that took effect.
    maybe_reserved: u32,
    /// Cancellations of unknown outcome that took effect.
    maybe_cancelled: u32,
    /// Open requests, by slot, that took effect.
    done: u64,
}

impl World {
    /// True if nothing is possible in the other that is not possible here.
    fn covers(&self, other: &World) -> bool {
        self.reserved == other.reserved
            && self.done == other.done
            && self.maybe_reserved <= other.maybe_reserved
            && self.maybe_cancelled <= other.maybe_cancelled
    }
}

/// The requests about one seat, and the memory to judge them.
#[derive(Debug, Default)]
struct SeatCheck {
    requests: Vec<(u32, u32, What)>,
    /// Time, whether it is an end, index of the request.
    moments: Vec<(u32, bool, u32)>,
    worlds: Vec<World>,
    open: Vec<Option<u32>>,
    maybe_reserved: u32,
    maybe_cancelled: u32,
}

impl SeatCheck {
    fn gather(&mut self, entries: &[Entry], readings: &[Reading], seat: u16) {
        self.requests.clear();
        let commands = entries
            .iter()
            .map(|entry| (entry.begin, entry.end, entry.what));
        self.requests.extend(commands);
        let looks = readings.iter().map(|reading| {
            let what = match reading.reserved >> seat & 1 {
                0 => What::SeenFree,
                _ => What::SeenReserved,
            };
            (reading.begin, reading.end, what)
        });
        self.requests.extend(looks);
        self.moments.clear();
        for (index, (begin, end, _)) in (0_u32..).zip(&self.requests) {
            self.moments.push((*begin, false, index));
            if *end != NEVER {
                self.moments.push((*end, true, index));
            }
        }
        self.moments.sort_unstable();
        (self.maybe_reserved, self.maybe_cancelled) = (0, 0);
        self.open.clear();
        self.worlds.clear();
        self.worlds.push(World {
            reserved: false,
            maybe_reserved: 0,
            maybe_cancelled: 0,
            done: 0,
        });
    }

    fn check(&mut self) -> Option<Fault> {
        for at in 0..self.moments.len() {
            let (_, is_end, index) = self.moments[at];
            let (begin, _, what) = self.requests[index as usize];
            match (is_end, what) {
                (false, What::MaybeReserved) => self.maybe_reserved += 1,
                (false, What::MaybeCancelled) => self.maybe_cancelled += 1,
                (false, _) => {
                    let free = self.open.iter().position(Option::is_none);
                    match free {
                        Some(slot) => self.open[slot] = Some(index),
                        None if self.open.len() < OPEN_MAX => self.open.push(Some(index)),
                        None => return Some(Fault::Entangled),
                    }
                }
                (true, _) => {
                    if !self.close(index) {
                        return Some(Fault::Impossible { what, begin });
                    }
                    if self.worlds.len() > WORLDS_MAX {
                        return Some(Fault::Entangled);
                    }
                }
            }
        }
        None
    }

    /// A request has ended: only worlds in which it took effect remain. False if there are none.
    fn close(&mut self, index: u32) -> bool {
        let Some(slot) = self.open.iter().position(|open| *open == Some(index)) else {
            return true;
        };
        let bit = 1_u64 << slot;
        // Grows while it is walked: every world leads to those one effect further.
        let mut at = 0;
        while at < self.worlds.len() && self.worlds.len() <= WORLDS_MAX {
            let world = self.worlds[at];
            at += 1;
            // Further effects can wait until another request ends.
            if world.done & bit == 0 {
                self.step(world);
            }
        }
        self.worlds.retain(|world| world.done & bit != 0);
        for world in &mut self.worlds {
            world.done &= !bit;
        }
        self.open[slot] = None;
        self.thin_out();
        !self.worlds.is_empty()
    }

    /// Adds the worlds that are one effect further.
    fn step(&mut self, world: World) {
        for slot in 0..self.open.len() {
            let Some(index) = self.open[slot] else {
                continue;
            };
            let bit = 1_u64 << slot;
            let (_, _, what) = self.requests[index as usize];
            let (needs, becomes) = match what {
                What::Reserved => (false, true),
                What::Cancelled => (true, false),
                What::SeenReserved => (true, true),
                _ => (false, false),
            };
            if world.done & bit == 0 && world.reserved == needs {
                self.add(World {
                    reserved: becomes,
                    done: world.done | bit,
                    ..world
                });
            }
        }
        if !world.reserved && world.maybe_reserved < self.maybe_reserved {
            self.add(World {
                reserved: true,
                maybe_reserved: world.maybe_reserved + 1,
                ..world
            });
        }
        if world.reserved && world.maybe_cancelled < self.maybe_cancelled {
            self.add(World {
                reserved: false,
                maybe_cancelled: world.maybe_cancelled + 1,
                ..world
            });
        }
    }

    fn add(&mut self, world: World) {
        if !self.worlds.iter().any(|known| known.covers(&world)) {
            self.worlds.push(world);
        }
    }

    /// Drops worlds that another one covers.
    fn thin_out(&mut self) {
        let mut kept = 0;
        for at in 0..self.worlds.len() {
            let world = self.worlds[at];
            if !self.worlds[..kept].iter().any(|known| known.covers(&world)) {
                self.worlds[kept] = world;
                kept += 1;
            }
        }
        self.worlds.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn check(requests: &[(u32, u32, What)]) -> Option<Fault> {
        let entries: Vec<Entry> = requests
            .iter()
            .map(|&(begin, end, what)| Entry {
                place: 0,
                begin,
                end,
                what,
            })
            .collect();
        let mut seat = SeatCheck::default();
        seat.gather(&entries, &[], 0);
        seat.check()
    }

    /// Goal: what is wrong is named by its kind; at the same time any order is allowed, and an unknown outcome either way.
    #[test]
    fn histories_are_judged() {
        use What::{Cancelled, MaybeReserved, Reserved, SeenFree, SeenReserved};
        for (requests, wanted) in [
            (
                &[
                    (1, 2, SeenFree),
                    (3, 4, Reserved),
                    (5, 6, Cancelled),
                    (7, 8, Reserved),
                ][..],
                None,
            ),
            (&[(1, 2, Reserved), (3, 4, Reserved)], Some(Reserved)),
            (&[(1, 2, Cancelled)], Some(Cancelled)),
            (&[(1, 2, Reserved), (3, 4, SeenFree)], Some(SeenFree)),
            (
                &[(1, 10, Reserved), (2, 9, SeenFree), (3, 8, SeenReserved)],
                None,
            ),
            (
                &[(1, 10, Reserved), (2, 3, SeenReserved), (4, 5, SeenFree)],
                Some(SeenFree),
            ),
            (
                &[
                    (1, NEVER, MaybeReserved),
                    (3, 4, SeenFree),
                    (5, 6, SeenReserved),
                ],
                None,
            ),
            (
                &[
                    (1, NEVER, MaybeReserved),
                    (3, 4, SeenReserved),
                    (5, 6, SeenFree),
                ],
                Some(SeenFree),
            ),
            (
                &[(1, 2, SeenReserved), (3, NEVER, MaybeReserved)],
                Some(SeenReserved),
            ),
        ] {
            let found = check(requests).map(|fault| match fault {
                Fault::Impossible { what, .. } => what,
                Fault::Entangled => panic!("{requests:?}"),
            });
            assert_eq!(found, wanted, "{requests:?}");
        }
    }

    /// Goal: the quick check says the same as trying every order.
    #[test]
    fn the_check_agrees_with_trying_every_order() {
        const KINDS: [What; 6] = [
            What::Reserved,
            What::Cancelled,
            What::SeenReserved,
            What::SeenFree,
            What::MaybeReserved,
            What::MaybeCancelled,
        ];
        let mut random = Random::new(1);
        let mut wrong = 0;
        for _ in 0..20_000 {
            let count = 1 + random.below(5);
            let mut times: Vec<u32> = (1..=u32::try_from(count).unwrap() * 2).collect();
            for end in (2..=times.len()).rev() {
                times.swap(end - 1, random.below(end));
            }
            let requests: Vec<(u32, u32, What)> = times
                .chunks(2)
                .map(|pair| {
                    let what = KINDS[random.below(6)];
                    let end = match what {
                        What::MaybeReserved | What::MaybeCancelled => NEVER,
                        _ => pair[0].max(pair[1]),
                    };
                    (pair[0].min(pair[1]), end, what)
                })
                .collect();
            let possible = every_order(&requests, 0, false);
            wrong += usize::from(!possible);
            assert_eq!(check(&requests).is_none(), possible, "{requests:?}");
        }
        assert!(wrong > 5_000 && wrong < 19_000, "{wrong}");
    }

    /// True if the requests not in `done` can follow in some order.
    fn every_order(requests: &[(u32, u32, What)], done: u32, reserved: bool) -> bool {
        let left = |i: usize| done >> i & 1 == 0;
        if (0..requests.len()).all(|i| !left(i) || requests[i].1 == NEVER) {
            return true;
        }
        (0..requests.len()).filter(|i| left(*i)).any(|i| {
            let (begin, _, what) = requests[i];
            let overdue = (0..requests.len()).any(|j| j != i && left(j) && requests[j].1 < begin);
            let (needs, becomes) = match what {
                What::Reserved | What::MaybeReserved => (false, true),
                What::Cancelled | What::MaybeCancelled => (true, false),
                What::SeenReserved => (true, true),
                What::SeenFree => (false, false),
            };
            !overdue && reserved == needs && every_order(requests, done | 1 << i, becomes)
        })
    }
}
