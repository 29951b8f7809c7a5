//! Were the reservations that nobody paid given back, each once, not too early, and no others? Pure: the events alone
//! tell it, with what the clocks of the nodes may have shown.
//!
//! A timer that gives back fires once the clock of the process that owns the timers shows its time: that of the
//! reservation, by the clock of the node that decided it, and the time to pay. Hence what is excused as too early is
//! what some clock may have shown between the setting of the timer and the moment at which what it did was seen. While
//! all clocks are right nothing is excused, and the event itself must say that it was decided in time.

use std::collections::HashMap;

use gesta_load::cinema::{Wrong, Wrongs};
use uuid::Uuid;

use super::book::{Book, Change, Did, Place, Seat, Timer};
use crate::world::clocks::ClockReadings;

/// What the key of a command begins with that a timer gives.
const TIMER: &str = "timer-";

/// What is promised.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// How long a reservation may stay unpaid, in microseconds.
    pub(super) pay_within: i64,
    /// What the clocks of the nodes have shown.
    pub(super) clocks: ClockReadings,
}

/// What was found, beside what is wrong.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::load) struct Counts {
    pub(in crate::load) reserved: u64,
    pub(in crate::load) paid: u64,
    /// By users.
    pub(in crate::load) cancelled: u64,
    /// By timers.
    pub(in crate::load) given_back: u64,
    /// Of those the ones before their time by the right clock: some clock was fast.
    pub(in crate::load) early_by_clock: u64,
    /// How long after its time a seat was given back at most while all clocks were right, in microseconds.
    pub(in crate::load) late_max: i64,
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
pub(super) fn judge(book: &Book, terms: &Terms, wrongs: &mut Wrongs) -> Counts {
    let mut counts = Counts::default();
    for why in &book.unreadable {
        wrongs.add(Wrong::Unreadable, 1, || why.clone());
    }
    for id in &book.set_twice {
        wrongs.add(Wrong::FalseTimer, 1, || format!("timer {id} was set twice"));
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
            wrongs,
        };
        changes.iter().for_each(|change| judged.take(change));
    }
    let mut reservations: HashMap<Place, &Change> = HashMap::new();
    for change in book.seats.values().flatten() {
        if change.did == Did::Reserved {
            reservations.insert(change.place, change);
        }
    }
    for (id, timer) in &book.timers {
        let Some(reservation) = reservations.get(&timer.because) else {
            let told = || format!("timer {id} of {} is of no reservation", timer.key);
            wrongs.add(Wrong::FalseTimer, 1, told);
            continue;
        };
        let due = reservation.at + terms.pay_within;
        if (timer.due, timer.reserved_at) != (due, reservation.at) {
            let told = || format!("timer {id} of {}: {} for {due}", timer.key, timer.due);
            wrongs.add(Wrong::FalseTimer, 1, told);
        }
    }
    counts
}

/// What is to be done before a time and is not: in words.
pub(super) fn open(book: &Book, terms: &Terms, until: i64) -> Vec<(Wrong, String)> {
    let mut open = Vec::new();
    let mut timers: HashMap<Place, u64> = HashMap::new();
    for (id, timer) in &book.timers {
        *timers.entry(timer.because).or_default() += 1;
        if timer.due <= until && !book.is_over(*id, timer) {
            let told = format!("timer {id} of {} is pending", timer.key);
            open.push((Wrong::TimerPending, told));
        }
    }
    for (seat, changes) in &book.seats {
        for change in changes.iter().filter(|change| change.did == Did::Reserved) {
            if !timers.contains_key(&change.place) && change.seen.by <= until {
                let told = format!("seat {seat}: no timer of its reservation at {}", change.at);
                open.push((Wrong::NotWatched, told));
            }
        }
        let last = changes.last().filter(|last| last.did == Did::Reserved);
        if let Some(last) = last.filter(|last| last.at + terms.pay_within <= until) {
            let told = format!("seat {seat} is held since {} and not paid", last.at);
            open.push((Wrong::NotGivenBack, told));
        }
    }
    open
}

/// The latest time at which a reservation that nobody has paid so far is to be given back, by the clocks.
pub(super) fn last_due(book: &Book, terms: &Terms) -> Option<i64> {
    let lasts = book.seats.values().filter_map(|changes| changes.last());
    let held = lasts.filter(|last| last.did == Did::Reserved);
    held.map(|last| last.at + terms.pay_within).max()
}

/// A seat through its changes.
struct SeatJudge<'a> {
    book: &'a Book,
    terms: &'a Terms,
    seat: &'a Seat,
    /// Its present reservation.
    holder: Option<&'a Change>,
    is_paid: bool,
    given_back: &'a mut HashMap<Uuid, u64>,
    counts: &'a mut Counts,
    wrongs: &'a mut Wrongs,
}

impl<'a> SeatJudge<'a> {
    fn take(&mut self, change: &'a Change) {
        match change.did {
            Did::Reserved => {
                self.counts.reserved += 1;
                if self.holder.is_some() {
                    self.wrong(Wrong::HeldTwice, change, "was held already");
                }
                (self.holder, self.is_paid) = (Some(change), false);
            }
            Did::Paid => {
                self.counts.paid += 1;
                if self.holder.is_none() || self.is_paid {
                    let what = "was free, or paid already";
                    self.wrong(Wrong::StoredTwice, change, what);
                }
                self.is_paid = true;
            }
            Did::Cancelled => {
                match timer_of(&change.key) {
                    Some(id) => self.take_back(change, id),
                    None => {
                        self.counts.cancelled += 1;
                        if self.holder.is_none() {
                            self.wrong(Wrong::CancelledTwice, change, "was free already");
                        }
                    }
                }
                if self.is_paid {
                    self.wrong(Wrong::PaidGivenBack, change, "was paid");
                }
                (self.holder, self.is_paid) = (None, false);
            }
        }
    }

    /// A timer gives the seat back.
    fn take_back(&mut self, change: &'a Change, id: Uuid) {
        self.counts.given_back += 1;
        let times = self.given_back.entry(id).or_default();
        *times += 1;
        if *times > 1 {
            self.wrong(Wrong::GivenBackTwice, change, "by the same timer");
        }
        let Some(holder) = self.holder else {
            return self.wrong(Wrong::GivenBackTwice, change, "was free already");
        };
        let Some(timer) = self.book.timers.get(&id) else {
            return self.wrong(Wrong::GivenBackWrongly, change, "by no timer");
        };
        if timer.because != holder.place {
            let what = "by the timer of another reservation";
            return self.wrong(Wrong::GivenBackWrongly, change, what);
        }
        self.check_time(change, holder, timer);
    }

    fn check_time(&mut self, change: &Change, holder: &Change, timer: &Timer) {
        let due = holder.at + self.terms.pay_within;
        let (from, by) = (timer.seen.after, change.seen.by);
        let clocks = &self.terms.clocks;
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
            self.wrong(Wrong::GivenBackEarly, change, &what);
        }
        self.counts.early_by_clock += u64::from(by < due);
        if were_right {
            self.counts.late_max = self.counts.late_max.max(by - due);
        }
    }

    fn wrong(&mut self, kind: Wrong, change: &Change, what: &str) {
        let (seat, Change { did, at, key, .. }) = (self.seat, change);
        let told = || format!("seat {seat}: {did:?} at {at} by {key}: {what}");
        self.wrongs.add(kind, 1, told);
    }
}

/// The timer that has given a command.
pub(super) fn timer_of(key: &str) -> Option<Uuid> {
    Uuid::try_parse(key.strip_prefix(TIMER)?).ok()
}
