//! Can the replies about seats be true whose order the log tells? Each must fit a place in that order (`order`): not
//! before anything that somebody knew before it was asked for, and not after what was asked for after it had come. And
//! what is stored of each command must be what its reply says, and asked for by somebody.
//!
//! A command that was refused may be stored all the same, if an attempt before had no answer and was stored later: then
//! the refusal has a place before it. Else the refusal was no answer to a retry, which gets the success of the first
//! time (cinema/README.md).
//! Invariant: what a timer does was asked for by nobody, so it bounds no reply from above.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::order::{Places, Statement, Stretch, misfits};
use super::payments::timer_of;
use crate::history::payments::{
    Deed, SeatBook, SeatChanged, SeatCommand, SeatReply, SeatRound, SeatSight, ShowSeat,
};
use crate::verdict::{Kind, Verdict};

/// A reply about a seat.
struct Fit {
    began: u64,
    ended: u64,
    says: Says,
}

/// What it says.
#[derive(Debug, Clone, Copy)]
enum Says {
    /// This change of the seat, by its number from 1, was done; or nobody was told that it was.
    Done(u64),
    /// The seat was so.
    Saw(SeatSight),
    /// The seat was so, and therefore the command was refused that is stored as this change all the same.
    Refused(SeatSight, u64),
}

/// What is stored of each command, by its key: the seat, and the change by its number from 1.
type Stored<'a> = HashMap<&'a str, Vec<(ShowSeat, u64, &'a SeatChanged)>>;

/// Judges all replies of these rounds, and whether somebody asked for everything that is stored. Of other rounds, whose
/// keys begin with one of these prefixes, anything may be stored.
pub fn judge(book: &SeatBook, rounds: &[&SeatRound], others: &[&str], verdict: &mut Verdict) {
    let mut stored = Stored::new();
    for (seat, changes) in &book.seats {
        for (number, change) in (1..).zip(changes) {
            let one = (*seat, number, change);
            stored.entry(&change.key).or_default().push(one);
        }
    }
    for round in rounds {
        judge_round(book, round, &stored, verdict);
    }
    let asked = rounds.iter().flat_map(|round| &round.asked);
    let asked: HashSet<&str> = asked.map(|asked| asked.key.as_str()).collect();
    let is_of_others = |key: &str| others.iter().any(|prefix| key.starts_with(prefix));
    for (key, changes) in &stored {
        let is_of_timer = timer_of(key).is_some();
        for (seat, _, SeatChanged { deed, at, .. }) in changes {
            // A timer gives back and does nothing else; whether it may is judged with the seat.
            let is_invited = match is_of_timer {
                true => *deed == Deed::Cancel,
                false => asked.contains(key) || is_of_others(key),
            };
            if !is_invited {
                verdict.add(Kind::Uninvited, 1, || {
                    format!("seat {seat}: {deed:?} at {at} by {key}, unasked")
                });
            }
        }
    }
}

fn judge_round(book: &SeatBook, round: &SeatRound, stored: &Stored<'_>, verdict: &mut Verdict) {
    for strange in &round.strange {
        verdict.add(Kind::Answer, 1, || strange.clone());
    }
    for given_up in &round.given_up {
        verdict.add(Kind::Unanswered, 1, || given_up.clone());
    }
    let mut seats: BTreeMap<ShowSeat, Vec<Fit>> = BTreeMap::new();
    for asked in &round.asked {
        let of_key = stored
            .get(asked.key.as_str())
            .map_or(&[][..], Vec::as_slice);
        check_key(asked, of_key, verdict);
        // What is stored of another seat is told of already.
        let of_seat = of_key.iter().find(|(seat, ..)| *seat == asked.seat);
        let number = of_seat.map(|(_, number, _)| *number);
        let of_seat = seats.entry(asked.seat).or_default();
        let mut add = |began, ended, says| of_seat.push(Fit { began, ended, says });
        match (asked.reply, number) {
            (SeatReply::Done, Some(number)) => add(asked.first, asked.end, Says::Done(number)),
            (SeatReply::Open, Some(number)) => add(asked.first, u64::MAX, Says::Done(number)),
            (SeatReply::Refused(saw), number) => {
                let says = match number.filter(|_| asked.in_doubt) {
                    Some(number) => Says::Refused(saw, number),
                    None => Says::Saw(saw),
                };
                add(asked.begin, asked.end, says);
                if let Some(number) = number {
                    add(asked.first, u64::MAX, Says::Done(number));
                }
            }
            (SeatReply::Done | SeatReply::Open, None) => {}
        }
    }
    for read in &round.reads {
        for (number, saw) in (0..).zip(&read.seats) {
            let show = read.show;
            seats
                .entry(ShowSeat { show, number })
                .or_default()
                .push(Fit {
                    began: read.begin,
                    ended: read.end,
                    says: Says::Saw(*saw),
                });
        }
    }
    for (seat, fits) in seats {
        let changes = book.seats.get(&seat).map_or(&[][..], Vec::as_slice);
        judge_seat(&seat, changes, &fits, verdict);
    }
}

/// What is stored of a command is what its reply says.
fn check_key(asked: &SeatCommand, stored: &[(ShowSeat, u64, &SeatChanged)], verdict: &mut Verdict) {
    let SeatCommand {
        key, seat, deed, ..
    } = asked;
    let told = |what: &str| format!("seat {seat}: {deed:?} by {key} {what}");
    match (asked.reply, stored.len()) {
        (SeatReply::Done, 0) => verdict.add(Kind::NotStored, 1, || told("was done")),
        (_, 2..) => verdict.add(Kind::StoredTwice, 1, || told("is stored twice")),
        (SeatReply::Refused(_), 1) if !asked.in_doubt => {
            verdict.add(Kind::Uninvited, 1, || told("was refused"));
        }
        _ => {}
    }
    let is_other =
        |(of, _, change): &(ShowSeat, u64, &SeatChanged)| (of, change.deed) != (seat, *deed);
    if stored.iter().any(is_other) {
        verdict.add(Kind::Uninvited, 1, || told("is stored as something else"));
    }
}

/// Finds the replies of a seat that fit nowhere.
fn judge_seat(seat: &ShowSeat, changes: &[SeatChanged], fits: &[Fit], verdict: &mut Verdict) {
    verdict.keys += 1;
    verdict.answers += fits.len();
    // What the seat was after so many changes.
    let states = changes.iter().map(|change| match change.deed {
        Deed::Reserve => SeatSight::Reserved,
        Deed::Pay => SeatSight::Paid,
        Deed::Cancel => SeatSight::Free,
    });
    let states: Vec<SeatSight> = [SeatSight::Free].into_iter().chain(states).collect();
    let stretches = |said: SeatSight| -> Vec<Stretch> {
        let all = (0..).zip(&states);
        let fitting = all.filter(|(_, state)| state.fits(said));
        fitting.map(|(place, _)| (place, place)).collect()
    };
    let (free, reserved) = (stretches(SeatSight::Free), stretches(SeatSight::Reserved));
    let (paid, held) = (stretches(SeatSight::Paid), stretches(SeatSight::Held));
    let places = |saw: SeatSight| match saw {
        SeatSight::Free => &free,
        SeatSight::Reserved => &reserved,
        SeatSight::Paid => &paid,
        SeatSight::Held => &held,
    };
    let statements = fits.iter().map(|fit| Statement {
        began: fit.began,
        ended: fit.ended,
        caller: None,
        places: match fit.says {
            Says::Done(number) => Places::Change {
                from: number - 1,
                to: number,
            },
            Says::Saw(saw) => Places::Any {
                of: places(saw),
                before: u64::MAX,
            },
            Says::Refused(saw, number) => Places::Any {
                of: places(saw),
                before: number,
            },
        },
    });
    let statements: Vec<Statement<'_>> = statements.collect();
    for (at, misfit) in misfits(&statements) {
        let Fit { began, ended, says } = &fits[at];
        let (kind, said) = match says {
            Says::Done(number) => (Kind::Stale, format!("change {number} was done")),
            Says::Saw(saw) => (Kind::Stale, format!("it was said to be {saw:?}")),
            Says::Refused(saw, number) => {
                let said = format!("change {number} was refused, since it was {saw:?}");
                (Kind::Uninvited, said)
            }
        };
        verdict.add(kind, 1, || {
            format!("seat {seat}: {said} (request {began} to {ended}): {misfit:?}")
        });
    }
}
