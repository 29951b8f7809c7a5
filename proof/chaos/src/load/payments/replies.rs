//! Can the replies be true? The log says in which order a seat changed; so each reply must fit a place in that order:
//! not before anything that somebody knew before it was asked for, and not after what was asked for after it had come.
//!
//! How: the replies of a seat are taken in the order in which they were asked for, and each gets the first place that
//! it fits. A later place would only leave less room for others, so a reply without a place is stale or wrong.
//! A command that was refused may be stored all the same, if an attempt before had no answer and was stored later: then
//! the refusal has a place before it. Else the refusal was no answer to a retry, which gets the success of the first
//! time (cinema/README.md).
//! Invariant: what a timer does was asked for by nobody, so it bounds no reply from above.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use gesta_load::cinema::{Wrong, Wrongs};

use super::book::{Book, Change, Did, Seat};
use super::judge::timer_of;
use super::users::{Command, Record, Reply, Saw};

/// A reply about a seat.
struct Fit {
    begin: u64,
    end: u64,
    what: What,
}

/// What it says.
#[derive(Clone, Copy)]
enum What {
    /// This change of the seat, by its number from 1, was done.
    Done(usize),
    /// The seat was so.
    Saw(Saw),
    /// The seat was so, and therefore the command was refused that is stored as this change all the same.
    Refused(Saw, usize),
}

/// A reply that fits nowhere, in words.
struct Unfit {
    kind: Wrong,
    why: String,
}

/// What is stored of each command, by its key: the seat, and the change by its number from 1.
type Stored<'a> = HashMap<&'a str, Vec<(Seat, usize, &'a Change)>>;

/// Judges all replies of these rounds, and whether somebody asked for everything that is stored. Of other rounds, whose
/// keys begin with one of these prefixes, anything may be stored.
pub(super) fn judge(book: &Book, rounds: &[&Record], others: &[&str], wrongs: &mut Wrongs) {
    let mut stored = Stored::new();
    for (seat, changes) in &book.seats {
        for (number, change) in (1..).zip(changes) {
            let one = (*seat, number, change);
            stored.entry(&change.key).or_default().push(one);
        }
    }
    for round in rounds {
        judge_round(book, round, &stored, wrongs);
    }
    let asked = rounds.iter().flat_map(|round| &round.asked);
    let asked: HashSet<&str> = asked.map(|asked| asked.key.as_str()).collect();
    let is_of_others = |key: &str| others.iter().any(|prefix| key.starts_with(prefix));
    for (key, changes) in &stored {
        let is_of_timer = timer_of(key).is_some();
        for (seat, _, Change { did, at, .. }) in changes {
            // A timer gives back and does nothing else; whether it may is judged with the seat.
            let is_invited = match is_of_timer {
                true => *did == Did::Cancelled,
                false => asked.contains(key) || is_of_others(key),
            };
            if !is_invited {
                let told = || format!("seat {seat}: {did:?} at {at} by {key}, unasked");
                wrongs.add(Wrong::Uninvited, 1, told);
            }
        }
    }
}

fn judge_round(book: &Book, told: &Record, stored: &Stored<'_>, wrongs: &mut Wrongs) {
    for strange in &told.strange {
        wrongs.add(Wrong::Answer, 1, || strange.clone());
    }
    for given_up in &told.given_up {
        wrongs.add(Wrong::Unanswered, 1, || given_up.clone());
    }
    let mut seats: BTreeMap<Seat, Vec<Fit>> = BTreeMap::new();
    let mut begins: HashMap<&str, u64> = HashMap::new();
    for asked in &told.asked {
        begins.insert(&asked.key, asked.first);
        let of_key = stored
            .get(asked.key.as_str())
            .map_or(&[][..], Vec::as_slice);
        check_key(asked, of_key, wrongs);
        let what = match (asked.reply, of_key) {
            (Reply::Done, [(_, number, _), ..]) => What::Done(*number),
            (Reply::Refused(saw), [(seat, number, _)]) if asked.in_doubt && *seat == asked.seat => {
                What::Refused(saw, *number)
            }
            (Reply::Refused(saw), _) => What::Saw(saw),
            (Reply::Done | Reply::Open, _) => continue,
        };
        let begin = match what {
            What::Done(_) => asked.first,
            What::Saw(_) | What::Refused(..) => asked.begin,
        };
        let end = asked.end;
        seats
            .entry(asked.seat)
            .or_default()
            .push(Fit { begin, end, what });
    }
    for read in &told.reads {
        for (number, saw) in (0..).zip(&read.seats) {
            let show = read.show;
            seats.entry(Seat { show, number }).or_default().push(Fit {
                begin: read.begin,
                end: read.end,
                what: What::Saw(*saw),
            });
        }
    }
    for (seat, fits) in seats {
        let changes = book.seats.get(&seat).map_or(&[][..], Vec::as_slice);
        for Unfit { kind, why } in judge_seat(changes, fits, &begins) {
            wrongs.add(kind, 1, || format!("seat {seat}: {why}"));
        }
    }
}

/// What is stored of a command is what its reply says.
fn check_key(asked: &Command, stored: &[(Seat, usize, &Change)], wrongs: &mut Wrongs) {
    let Command { key, seat, did, .. } = asked;
    let told = |what: &str| format!("seat {seat}: {did:?} by {key} {what}");
    match (asked.reply, stored.len()) {
        (Reply::Done, 0) => wrongs.add(Wrong::NotStored, 1, || told("was done")),
        (_, 2..) => wrongs.add(Wrong::StoredTwice, 1, || told("is stored twice")),
        (Reply::Refused(_), 1) if !asked.in_doubt => {
            wrongs.add(Wrong::Uninvited, 1, || told("was refused"));
        }
        _ => {}
    }
    let is_other = |(of, _, change): &(Seat, usize, &Change)| (of, change.did) != (seat, *did);
    if stored.iter().any(is_other) {
        wrongs.add(Wrong::Uninvited, 1, || told("is stored as something else"));
    }
}

/// The replies of a seat that fit nowhere.
fn judge_seat(changes: &[Change], mut fits: Vec<Fit>, begins: &HashMap<&str, u64>) -> Vec<Unfit> {
    // What the seat was after so many changes, and when the last of them was asked for, at the earliest.
    let mut states = vec![(Saw::Free, 0)];
    for change in changes {
        let begin = begins.get(change.key.as_str()).copied().unwrap_or_default();
        let latest = states.last().map_or(0, |(_, begin)| *begin).max(begin);
        let saw = match change.did {
            Did::Reserved => Saw::Reserved,
            Did::Paid => Saw::Paid,
            Did::Cancelled => Saw::Free,
        };
        states.push((saw, latest));
    }
    fits.sort_by_key(|fit| fit.begin);
    let mut ended: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let (mut least, mut wrong) = (0, Vec::new());
    for fit in fits {
        while let Some(Reverse((end, place))) = ended.peek().copied() {
            if end >= fit.begin {
                break;
            }
            ended.pop();
            least = least.max(place);
        }
        let first = |saw: Saw| (least..states.len()).find(|at| states[*at].0.fits(saw));
        let place = match fit.what {
            What::Done(number) => (number > least).then_some(number),
            What::Saw(saw) => first(saw),
            What::Refused(saw, number) => first(saw).filter(|place| *place < number),
        };
        match place.filter(|at| states[*at].1 <= fit.end) {
            Some(place) => ended.push(Reverse((fit.end, place))),
            None => wrong.push(fit.unfit(least)),
        }
    }
    wrong
}

impl Fit {
    /// It has no place after those that were known before.
    fn unfit(&self, least: usize) -> Unfit {
        let (kind, said) = match self.what {
            What::Done(number) => (Wrong::Stale, format!("change {number} was done")),
            What::Saw(saw) => (Wrong::Stale, format!("it was said to be {saw:?}")),
            What::Refused(saw, number) => {
                let said = format!("change {number} was refused, since it was {saw:?}");
                (Wrong::Uninvited, said)
            }
        };
        let (begin, end) = (self.begin, self.end);
        let why =
            format!("{said} (request {begin} to {end}), although change {least} was known before");
        Unfit { kind, why }
    }
}
