//! Were the reservations that nobody paid given back, each once, not too early, and no others? The events alone tell
//! it, with what the clocks of the nodes may have shown.
//!
//! A timer that gives back fires once the clock of the process that owns the timers shows its time: that of the
//! reservation, by the clock of the node that decided it, and the time to pay. Hence what is excused as too early is
//! what some clock may have shown between the setting of the timer and the moment at which what it did was seen. While
//! all clocks are right nothing is excused, and the event itself must say that it was decided in time.

use std::collections::HashMap;

use uuid::Uuid;

use crate::history::payments::{Deed, EventPlace, SeatBook, SeatChanged, SeatTimer, ShowSeat};
use crate::verdict::{Kind, Verdict};

/// What the key of a command begins with that a timer gives.
const TIMER: &str = "timer-";

/// What the clocks of all nodes may have shown, in microseconds.
pub trait Clocks {
    /// True if all were right between two times.
    fn were_right(&self, from: i64, to: i64) -> bool;

    /// The latest time that one of them may have shown between two times.
    fn latest(&self, from: i64, to: i64) -> i64;
}

/// Clocks that were right all the time.
#[derive(Debug, Clone, Copy)]
pub struct RightClocks;

impl Clocks for RightClocks {
    fn were_right(&self, _: i64, _: i64) -> bool {
        true
    }

    fn latest(&self, _: i64, to: i64) -> i64 {
        to
    }
}

/// What is promised.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// How long a reservation may stay unpaid, in microseconds.
    pub pay_within: i64,
    /// The clocks of the nodes.
    pub clocks: &'a dyn Clocks,
}

impl std::fmt::Debug for Terms<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terms")
            .field("pay_within", &self.pay_within)
            .finish_non_exhaustive()
    }
}

/// What was found, beside what is wrong.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Reservations.
    pub reserved: u64,
    /// Seats that were paid.
    pub paid: u64,
    /// Cancellations by users.
    pub cancelled: u64,
    /// Seats that timers have given back.
    pub given_back: u64,
    /// Of those the ones before their time by the right clock: some clock was fast.
    pub early_by_clock: u64,
    /// How long after its time a seat was given back at most while all clocks were right, in microseconds.
    pub late_max: i64,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            reserved,
            paid,
            cancelled,
            given_back,
            early_by_clock,
            late_max,
        } = self;
        let late = std::time::Duration::from_micros(u64::try_from(*late_max).unwrap_or_default());
        write!(
            f,
            "so far {reserved} seats were reserved, {paid} paid, {cancelled} cancelled, and {given_back} given back, \
             of these {early_by_clock} early by a fast clock; by right clocks at most {late:.1?} late"
        )
    }
}

/// Judges all that was stored.
pub fn judge(book: &SeatBook, terms: Terms<'_>, verdict: &mut Verdict) -> Counts {
    let mut counts = Counts::default();
    for why in &book.unreadable {
        verdict.add(Kind::Unreadable, 1, || why.clone());
    }
    for id in &book.set_twice {
        verdict.add(Kind::FalseTimer, 1, || format!("timer {id} was set twice"));
    }
    let mut given_back: HashMap<Uuid, u64> = HashMap::new();
    for (seat, changes) in &book.seats {
        let mut judged = SeatJudge {
            book,
            terms,
            seat,
            holder: None,
            is_paid: false,
            given_back: &mut given_back,
            counts: &mut counts,
            verdict,
        };
        changes.iter().for_each(|change| judged.take(change));
    }
    let mut reservations: HashMap<EventPlace, &SeatChanged> = HashMap::new();
    for change in book.seats.values().flatten() {
        if change.deed == Deed::Reserve {
            reservations.insert(change.place, change);
        }
    }
    for (id, timer) in &book.timers {
        let Some(reservation) = reservations.get(&timer.because) else {
            verdict.add(Kind::FalseTimer, 1, || {
                format!("timer {id} of {} is of no reservation", timer.key)
            });
            continue;
        };
        let due = reservation.at + terms.pay_within;
        if (timer.due, timer.reserved_at) != (due, reservation.at) {
            verdict.add(Kind::FalseTimer, 1, || {
                format!("timer {id} of {}: {} for {due}", timer.key, timer.due)
            });
        }
    }
    counts
}

/// Adds what is to be done before a time and is not.
pub fn open(book: &SeatBook, terms: Terms<'_>, until: i64, verdict: &mut Verdict) {
    let mut timers: HashMap<EventPlace, u64> = HashMap::new();
    for (id, timer) in &book.timers {
        *timers.entry(timer.because).or_default() += 1;
        if timer.due <= until && !book.is_over(*id, timer) {
            verdict.add(Kind::TimerPending, 1, || {
                format!("timer {id} of {} is pending", timer.key)
            });
        }
    }
    for (seat, changes) in &book.seats {
        for change in changes.iter().filter(|one| one.deed == Deed::Reserve) {
            if !timers.contains_key(&change.place) && change.seen.by <= until {
                verdict.add(Kind::NotWatched, 1, || {
                    format!("seat {seat}: no timer of its reservation at {}", change.at)
                });
            }
        }
        let last = changes.last().filter(|last| last.deed == Deed::Reserve);
        if let Some(last) = last.filter(|last| last.at + terms.pay_within <= until) {
            verdict.add(Kind::NotGivenBack, 1, || {
                format!("seat {seat} is held since {} and not paid", last.at)
            });
        }
    }
}

/// The latest time at which a reservation that nobody has paid so far is to be given back, by the clocks.
#[must_use]
pub fn last_due(book: &SeatBook, terms: Terms<'_>) -> Option<i64> {
    let lasts = book.seats.values().filter_map(|changes| changes.last());
    let held = lasts.filter(|last| last.deed == Deed::Reserve);
    held.map(|last| last.at + terms.pay_within).max()
}

/// A seat through its changes.
struct SeatJudge<'a> {
    book: &'a SeatBook,
    terms: Terms<'a>,
    seat: &'a ShowSeat,
    /// Its present reservation.
    holder: Option<&'a SeatChanged>,
    is_paid: bool,
    given_back: &'a mut HashMap<Uuid, u64>,
    counts: &'a mut Counts,
    verdict: &'a mut Verdict,
}

impl<'a> SeatJudge<'a> {
    fn take(&mut self, change: &'a SeatChanged) {
        match change.deed {
            Deed::Reserve => {
                self.counts.reserved += 1;
                if self.holder.is_some() {
                    self.wrong(Kind::HeldTwice, change, "was held already");
                }
                (self.holder, self.is_paid) = (Some(change), false);
            }
            Deed::Pay => {
                self.counts.paid += 1;
                if self.holder.is_none() || self.is_paid {
                    let what = "was free, or paid already";
                    self.wrong(Kind::StoredTwice, change, what);
                }
                self.is_paid = true;
            }
            Deed::Cancel => {
                match timer_of(&change.key) {
                    Some(id) => self.take_back(change, id),
                    None => {
                        self.counts.cancelled += 1;
                        if self.holder.is_none() {
                            self.wrong(Kind::CancelledTwice, change, "was free already");
                        }
                    }
                }
                if self.is_paid {
                    self.wrong(Kind::PaidGivenBack, change, "was paid");
                }
                (self.holder, self.is_paid) = (None, false);
            }
        }
    }

    /// A timer gives the seat back.
    fn take_back(&mut self, change: &'a SeatChanged, id: Uuid) {
        self.counts.given_back += 1;
        let times = self.given_back.entry(id).or_default();
        *times += 1;
        if *times > 1 {
            self.wrong(Kind::GivenBackTwice, change, "by the same timer");
        }
        let Some(holder) = self.holder else {
            return self.wrong(Kind::GivenBackTwice, change, "was free already");
        };
        let Some(timer) = self.book.timers.get(&id) else {
            return self.wrong(Kind::GivenBackWrongly, change, "by no timer");
        };
        if timer.because != holder.place {
            let what = "by the timer of another reservation";
            return self.wrong(Kind::GivenBackWrongly, change, what);
        }
        self.check_time(change, holder, timer);
    }

    fn check_time(&mut self, change: &SeatChanged, holder: &SeatChanged, timer: &SeatTimer) {
        let due = holder.at + self.terms.pay_within;
        let (from, by) = (timer.seen.after, change.seen.by);
        let clocks = self.terms.clocks;
        // The reservation may be older than its timer; its time is what the clock of its node showed.
        let were_right = clocks.were_right(holder.seen.after.min(from), by);
        let is_early = match were_right {
            true => change.at < due || by < due,
            false => clocks.latest(from, by) < due,
        };
        if is_early {
            let what = format!(
                "{} µs before its time (clocks right: {were_right})",
                due - change.at
            );
            self.wrong(Kind::GivenBackEarly, change, &what);
        }
        self.counts.early_by_clock += u64::from(by < due);
        if were_right {
            self.counts.late_max = self.counts.late_max.max(by - due);
        }
    }

    fn wrong(&mut self, kind: Kind, change: &SeatChanged, what: &str) {
        let (seat, SeatChanged { deed, at, key, .. }) = (self.seat, change);
        self.verdict.add(kind, 1, || {
            format!("seat {seat}: {deed:?} at {at} by {key}: {what}")
        });
    }
}

/// The timer that has given a command.
pub(super) fn timer_of(key: &str) -> Option<Uuid> {
    Uuid::try_parse(key.strip_prefix(TIMER)?).ok()
}
