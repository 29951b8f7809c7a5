//! Can the answers be true? Every seat is held by at most one reservation at a time, and every answer fits one order of
//! all requests that respects which of them came before which.
//!
//! How: for each seat, an order is searched effect by effect, and no state of the search is looked at twice (Wing and
//! Gong 1993, Lowe 2017). A seat has two states and few requests at a time, so the states are few. A request without an
//! answer may take effect at any later time, or never.
//! Invariant: no false alarm; what is too entangled to decide is counted as such.
//! Not here: what the store holds (`stored`). Seats are judged one by one, a read as one look at each of its seats.

use std::collections::HashSet;

use gesta_kit::operations::{Action, Operation, SeatAnswer, SeatState};

use super::ledger::{Entry, Ledger, NEVER, Reading, What};
use super::verdict::{Verdict, Wrong};

/// Requests about one seat at once that are told apart.
const OPEN_MAX: usize = 64;
/// Most states of the search for a seat.
const WORLDS_MAX: usize = 1 << 20;

/// Judges all requests. Reads that began after `last_from` are the look at the end of the run.
pub fn judge(ledger: &Ledger, last_from: u32) -> Verdict {
    let entries = ledger.sorted_entries();
    let readings = ledger.sorted_readings();
    let mut verdict = Verdict {
        acknowledged: ledger.acknowledged,
        unknown: entries.iter().filter(|entry| entry.end == NEVER).count() as u64,
        reads: readings.len() as u64,
        wrongs: ledger.wrongs.clone(),
        ..Verdict::default()
    };
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
            verdict.seats += 1;
            if let Some(fault) = Seat::of(of_seat, of_show, number).check() {
                verdict.wrongs.add(fault.kind(last_from), 1, || {
                    let id = ledger.shows.id(show);
                    format!("show {id} seat {number}: {fault}")
                });
            }
        }
    }
    verdict
}

/// Judges the operations of one seat that nobody pays; none if somebody does, or it cannot be decided.
pub fn judge_seat(operations: &[Operation]) -> Option<bool> {
    let entry = |operation: &Operation| {
        let is_done = |output: &Option<SeatAnswer>| output.map(|done| done == SeatAnswer::Done);
        let what = match &operation.action {
            Action::Reserve { output } => match is_done(output) {
                Some(true) => What::Reserved,
                Some(false) => What::SeenReserved,
                None => What::MaybeReserved,
            },
            Action::Cancel { output } => match is_done(output) {
                Some(true) => What::Cancelled,
                Some(false) => What::SeenFree,
                None => What::MaybeCancelled,
            },
            Action::ReadSeat { output } => match output.seat {
                SeatState::Free => What::SeenFree,
                SeatState::Reserved => What::SeenReserved,
                SeatState::Paid => return None,
            },
            _ => return None,
        };
        Some(Entry {
            place: 0,
            begin: operation.call.try_into().ok()?,
            end: match operation.answered {
                Some(end) => end.try_into().ok()?,
                None => NEVER,
            },
            what,
        })
    };
    let entries: Vec<Entry> = operations.iter().map(entry).collect::<Option<_>>()?;
    match Seat::of(&entries, &[], 0).check() {
        Some(Fault::Entangled) => None,
        found => Some(found.is_none()),
    }
}

fn split<T>(sorted: &[T], belongs: impl Fn(&T) -> bool) -> (&[T], &[T]) {
    let end = sorted.iter().position(|one| !belongs(one));
    sorted.split_at(end.unwrap_or(sorted.len()))
}

/// Why a seat's answers cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// This answer, asked for then, fits no order.
    Impossible { what: What, begin: u32 },
    /// Too much at once.
    Entangled,
}

impl Fault {
    fn kind(self, last_from: u32) -> Wrong {
        match self {
            Fault::Impossible { what, begin } => match what {
                What::Reserved => Wrong::HeldTwice,
                What::Cancelled => Wrong::CancelledTwice,
                _ if begin > last_from => Wrong::Lost,
                _ => Wrong::Stale,
            },
            Fault::Entangled => Wrong::Undecided,
        }
    }
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

/// A state of the search: what has taken effect so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct World {
    reserved: bool,
    /// All requests before this one.
    first: usize,
    /// Of the requests from there on, these.
    done: u64,
    /// Of the requests of unknown outcome, so many reservations and cancellations.
    maybe: [usize; 2],
}

/// The requests about one seat.
#[derive(Debug, Default)]
struct Seat {
    /// When each began and ended, in the order of the beginnings.
    requests: Vec<(u32, u32, What)>,
    /// When the reservations and the cancellations of unknown outcome began.
    maybe: [Vec<u32>; 2],
}

impl Seat {
    fn of(entries: &[Entry], readings: &[Reading], seat: u16) -> Self {
        let mut all = Self::default();
        for entry in entries {
            match entry.what {
                What::MaybeReserved => all.maybe[0].push(entry.begin),
                What::MaybeCancelled => all.maybe[1].push(entry.begin),
                what => all.requests.push((entry.begin, entry.end, what)),
            }
        }
        let looks = readings.iter().map(|reading| {
            let what = match reading.reserved >> seat & 1 {
                0 => What::SeenFree,
                _ => What::SeenReserved,
            };
            (reading.begin, reading.end, what)
        });
        all.requests.extend(looks);
        all.requests.sort_unstable_by_key(|(begin, ..)| *begin);
        all
    }

    /// Searches for an order; what is wrong if there is none.
    fn check(&self) -> Option<Fault> {
        let (mut left, mut known) = (vec![World::default()], HashSet::new());
        // The request that no order could get past.
        let mut furthest = (0, Fault::Entangled);
        while let Some(world) = left.pop() {
            let mut first = (NEVER, Fault::Entangled);
            for (_, &(begin, end, what)) in self.open(&world) {
                if begin > first.0 {
                    break;
                }
                if end < first.0 {
                    first = (end, Fault::Impossible { what, begin });
                }
            }
            if first.0 == NEVER {
                return None;
            }
            if first.0 > furthest.0 {
                furthest = first;
            }
            let Some(next) = self.next(&world, first.0) else {
                return Some(Fault::Entangled);
            };
            left.extend(next.into_iter().filter(|world| known.insert(*world)));
            if known.len() > WORLDS_MAX {
                return Some(Fault::Entangled);
            }
        }
        Some(furthest.1)
    }

    /// The requests that have not taken effect, by their distance from the first of them.
    fn open(&self, world: &World) -> impl Iterator<Item = (usize, &(u32, u32, What))> {
        let (all, done) = (self.requests[world.first..].iter().enumerate(), world.done);
        all.filter(move |(at, _)| *at >= OPEN_MAX || done >> at & 1 == 0)
    }

    /// The states that are one effect further. It is one of a request that began before the first of the open ones
    /// ended. None if there are too many at once.
    fn next(&self, world: &World, first_end: u32) -> Option<Vec<World>> {
        let mut next = Vec::new();
        for (at, &(begin, _, what)) in self.open(world) {
            if begin > first_end {
                break;
            }
            if at >= OPEN_MAX {
                return None;
            }
            let (needs, reserved) = match what {
                What::Reserved => (false, true),
                What::Cancelled => (true, false),
                What::SeenReserved => (true, true),
                _ => (false, false),
            };
            if world.reserved == needs {
                let done = world.done | 1 << at;
                let passed = done.trailing_ones();
                let further = World {
                    reserved,
                    first: world.first + passed as usize,
                    done: done.checked_shr(passed).unwrap_or(0),
                    ..*world
                };
                if reserved == needs {
                    // A look that can be true now need not wait: nothing is lost by it.
                    return Some(vec![further]);
                }
                next.push(further);
            }
        }
        let kind = usize::from(world.reserved);
        let begun = self.maybe[kind].iter().filter(|begin| **begin < first_end);
        if world.maybe[kind] < begun.count() {
            let mut world = *world;
            world.maybe[kind] += 1;
            world.reserved = !world.reserved;
            next.push(world);
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn check(requests: &[(u32, u32, What)]) -> Option<Fault> {
        let entry = |&(begin, end, what): &(u32, u32, What)| Entry {
            place: 0,
            begin,
            end,
            what,
        };
        let entries: Vec<Entry> = requests.iter().map(entry).collect();
        Seat::of(&entries, &[], 0).check()
    }

    /// Requests out of `reserved 1-2, maybe reserved 3`: what came of each, and when it began and ended.
    fn parsed(history: &str) -> Vec<(u32, u32, What)> {
        let parse = |request: &str| {
            let (what, times) = request.rsplit_once(' ').unwrap();
            let what = match what {
                "reserved" => What::Reserved,
                "cancelled" => What::Cancelled,
                "seen reserved" => What::SeenReserved,
                "seen free" => What::SeenFree,
                "maybe reserved" => What::MaybeReserved,
                _ => panic!("{what}"),
            };
            let (begin, end) = times.split_once('-').unwrap_or((times, ""));
            (begin.parse().unwrap(), end.parse().unwrap_or(NEVER), what)
        };
        history.split(", ").map(parse).collect()
    }

    /// Goal: what is wrong is named by its kind; at the same time any order is allowed, and an unknown outcome either
    /// way.
    #[test]
    fn histories_are_judged() {
        use What::{Cancelled, Reserved, SeenFree, SeenReserved};
        for (history, wanted) in [
            (
                "seen free 1-2, reserved 3-4, cancelled 5-6, reserved 7-8",
                None,
            ),
            ("reserved 1-2, reserved 3-4", Some(Reserved)),
            ("cancelled 1-2", Some(Cancelled)),
            ("reserved 1-2, seen free 3-4", Some(SeenFree)),
            ("reserved 1-10, seen free 2-9, seen reserved 3-8", None),
            (
                "reserved 1-10, seen reserved 2-3, seen free 4-5",
                Some(SeenFree),
            ),
            ("maybe reserved 1, seen free 3-4, seen reserved 5-6", None),
            (
                "maybe reserved 1, seen reserved 3-4, seen free 5-6",
                Some(SeenFree),
            ),
            ("seen reserved 1-2, maybe reserved 3", Some(SeenReserved)),
        ] {
            let found = check(&parsed(history)).map(|fault| match fault {
                Fault::Impossible { what, .. } => what,
                Fault::Entangled => panic!("{history}"),
            });
            assert_eq!(found, wanted, "{history}");
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
            random.shuffle(&mut times);
            let request = |pair: &[u32]| {
                let what = KINDS[random.below(6)];
                let end = match what {
                    What::MaybeReserved | What::MaybeCancelled => NEVER,
                    _ => pair[0].max(pair[1]),
                };
                (pair[0].min(pair[1]), end, what)
            };
            let requests: Vec<_> = times.chunks(2).map(request).collect();
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
