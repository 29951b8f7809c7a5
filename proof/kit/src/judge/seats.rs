//! Seats: is every seat held by one reservation at a time, do all answers fit one order that respects which of them
//! came before which, and is what was acknowledged stored, and nothing else?
//!
//! A seat is a register that is free or reserved (or paid, in a file): for each an order is searched (`search`). It has
//! few states and few requests at a time, so the search is short. Seats are judged one by one, a read of a show as one
//! look at each of its seats.
//! Not here: seats whose order the log tells (`payments`).

use std::ops::RangeInclusive;

use super::registers::spans;
use super::search::{Effect, Search, Span, search};
use crate::history::{Creation, Entry, NEVER, Reading, SeatEvent, Seats};
use crate::operations::{Action, Operation, SeatAnswer, SeatState};
use crate::verdict::{Kind, Verdict};

/// Judges all operations of a seat.
#[must_use]
pub fn seat(operations: &[Operation]) -> Search {
    use SeatState::{Free, Paid, Reserved};
    search(&spans(operations), Free, |seat, action| {
        let (from, to, output) = match action {
            Action::Reserve { output } => (Free, Reserved, output),
            Action::Cancel { output } | Action::GiveBack { output } => (Reserved, Free, output),
            Action::Pay { output } => (Reserved, Paid, output),
            Action::ReadSeat { output } => {
                return (output.seat == *seat).then_some(Effect::Nothing);
            }
            _ => return None,
        };
        match output {
            None | Some(SeatAnswer::Done) if *seat == from => Some(Effect::Becomes(to)),
            None => Some(Effect::Nothing),
            Some(SeatAnswer::Refused { seat: said }) if *seat != from => {
                let is_true = said.is_none_or(|said| said == *seat);
                is_true.then_some(Effect::Nothing)
            }
            Some(_) => None,
        }
    })
}

/// Judges all requests about seats. Reads that began after `last_from` are the look at the end of the run; `name` gives
/// the name of a seat of a show, for people.
#[must_use]
pub fn judge(history: &Seats, last_from: u32, name: impl Fn(u32, u16) -> String) -> Verdict {
    let entries = history.sorted_entries();
    let readings = history.sorted_readings();
    let mut verdict = Verdict {
        answers: entries.len() + readings.len(),
        looks: readings.len(),
        answers_open: entries.iter().filter(|entry| entry.end == NEVER).count(),
        ..Verdict::default()
    };
    let (mut entries, mut readings) = (entries.as_slice(), readings.as_slice());
    for show in 0..history.shows_asked() {
        let (of_show, rest) = split(readings, |reading| reading.show == show);
        readings = rest;
        for number in 0..history.per_show() {
            let place = history.place(show, number);
            let (of_seat, rest) = split(entries, |entry| entry.place == place);
            entries = rest;
            if of_seat.is_empty() && of_show.iter().all(|r| r.reserved >> number & 1 == 0) {
                continue;
            }
            verdict.keys += 1;
            let requests = requests(of_seat, of_show, number);
            match search(&requests, false, step) {
                Search::Fits => {}
                Search::Impossible { at } => {
                    let Span { call, what, .. } = requests[at];
                    let kind = kind(what, call > u64::from(last_from));
                    verdict.add(kind, 1, || {
                        format!("{}: {} (request {call})", name(show, number), said(what))
                    });
                }
                Search::Undecided => verdict.add(Kind::Undecided, 1, || {
                    format!("{}: too many requests at once", name(show, number))
                }),
            }
        }
    }
    verdict
}

fn split<T>(sorted: &[T], belongs: impl Fn(&T) -> bool) -> (&[T], &[T]) {
    let end = sorted.iter().position(|one| !belongs(one));
    sorted.split_at(end.unwrap_or(sorted.len()))
}

/// The requests about one seat.
fn requests(entries: &[Entry], readings: &[Reading], seat: u16) -> Vec<Span<SeatEvent>> {
    let entries = entries.iter().map(|entry| Span {
        call: entry.begin.into(),
        answered: (entry.end != NEVER).then_some(entry.end.into()),
        what: entry.what,
    });
    let looks = readings.iter().map(|reading| Span {
        call: reading.begin.into(),
        answered: Some(reading.end.into()),
        what: match reading.reserved >> seat & 1 {
            0 => SeatEvent::SeenFree,
            _ => SeatEvent::SeenReserved,
        },
    });
    entries.chain(looks).collect()
}

/// What a request does to a seat, if its answer is true.
fn step(is_reserved: &bool, what: &SeatEvent) -> Option<Effect<bool>> {
    let (needs, effect) = match what {
        SeatEvent::Reserved | SeatEvent::MaybeReserved => (false, Effect::Becomes(true)),
        SeatEvent::Cancelled | SeatEvent::MaybeCancelled => (true, Effect::Becomes(false)),
        SeatEvent::SeenReserved => (true, Effect::Nothing),
        SeatEvent::SeenFree => (false, Effect::Nothing),
    };
    (*is_reserved == needs).then_some(effect)
}

/// Which promise an answer breaks that fits no order.
fn kind(what: SeatEvent, is_last_look: bool) -> Kind {
    match what {
        SeatEvent::Reserved => Kind::HeldTwice,
        SeatEvent::Cancelled => Kind::CancelledTwice,
        _ if is_last_look => Kind::Lost,
        _ => Kind::Stale,
    }
}

fn said(what: SeatEvent) -> &'static str {
    match what {
        SeatEvent::Reserved => "a reservation was accepted although the seat was held",
        SeatEvent::Cancelled => "a cancellation was accepted although the seat was free",
        SeatEvent::SeenReserved => "it was said to be reserved although it was free",
        SeatEvent::SeenFree => "it was said to be free although it was reserved",
        SeatEvent::MaybeReserved | SeatEvent::MaybeCancelled => "an unknown outcome",
    }
}

/// What an event of the store did to a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeatChange {
    /// It was reserved.
    Reserved,
    /// It was freed.
    Cancelled,
}

/// What is stored of a seat.
#[derive(Debug, Clone, Copy, Default)]
struct Stored {
    reserved: u32,
    cancelled: u32,
}

/// Compares what the store holds with what was acknowledged, event by event in the order of the log.
#[derive(Debug)]
pub struct StoredSeats<'a> {
    history: &'a Seats,
    created: Vec<u32>,
    seats: Vec<Stored>,
    verdict: Verdict,
}

impl<'a> StoredSeats<'a> {
    /// Nothing is stored.
    #[must_use]
    pub fn new(history: &'a Seats) -> Self {
        let shows = history.shows_asked();
        Self {
            history,
            created: vec![0; shows as usize],
            seats: vec![Stored::default(); history.place(shows, 0) as usize],
            verdict: Verdict::default(),
        }
    }

    /// A show is stored.
    pub fn created(&mut self, show: u32) {
        self.verdict.events_stored += 1;
        self.created[show as usize] += 1;
    }

    /// A change of a seat is stored; `event` tells of it.
    pub fn changed(&mut self, place: u32, change: SeatChange, event: impl FnOnce() -> String) {
        self.verdict.events_stored += 1;
        let seat = &mut self.seats[place as usize];
        let is_held = seat.reserved > seat.cancelled;
        let is_reserved = change == SeatChange::Reserved;
        seat.reserved += u32::from(is_reserved);
        seat.cancelled += u32::from(!is_reserved);
        if is_held == is_reserved {
            let (_, number) = self.history.of_place(place);
            self.verdict.add(Kind::StoredTwice, 1, || {
                format!("{} of seat {number}, which was so already", event())
            });
        }
    }

    /// An event of a show is stored that cannot be understood.
    pub fn unreadable(&mut self, event: impl FnOnce() -> String) {
        self.verdict.events_stored += 1;
        self.verdict.add(Kind::Unreadable, 1, event);
    }

    /// Everything was shown. `name` gives the name of a show.
    #[must_use]
    pub fn finish(self, name: impl Fn(u32) -> String) -> Verdict {
        let (history, mut verdict) = (self.history, self.verdict);
        for (show, created) in (0_u32..).zip(self.created) {
            let wanted = match history.creation(show) {
                Creation::Created => 1..=1,
                Creation::Unknown => 0..=1,
                Creation::Unasked => 0..=0,
            };
            compare(&wanted, created, &mut verdict, || {
                format!("creations of show {}", name(show))
            });
        }
        // By seat: reservations and cancellations, certain and possible.
        let mut wanted = vec![[0_u32; 4]; self.seats.len()];
        for entry in history.sorted_entries() {
            let kind = match entry.what {
                SeatEvent::Reserved => 0,
                SeatEvent::MaybeReserved => 1,
                SeatEvent::Cancelled => 2,
                SeatEvent::MaybeCancelled => 3,
                SeatEvent::SeenReserved | SeatEvent::SeenFree => continue,
            };
            wanted[entry.place as usize][kind] += 1;
        }
        for (place, (seat, wanted)) in (0_u32..).zip(self.seats.into_iter().zip(wanted)) {
            let [reserved, maybe_reserved, cancelled, maybe_cancelled] = wanted;
            for (what, stored, from, more) in [
                ("reservations", seat.reserved, reserved, maybe_reserved),
                ("cancellations", seat.cancelled, cancelled, maybe_cancelled),
            ] {
                compare(&(from..=from + more), stored, &mut verdict, || {
                    let (show, seat) = history.of_place(place);
                    format!("{what} of show {} seat {seat}", name(show))
                });
            }
        }
        verdict
    }
}

fn compare(
    wanted: &RangeInclusive<u32>,
    stored: u32,
    verdict: &mut Verdict,
    what: impl FnOnce() -> String,
) {
    let (lost, more) = (
        wanted.start().saturating_sub(stored),
        stored.saturating_sub(*wanted.end()),
    );
    for (kind, count) in [(Kind::NotStored, lost), (Kind::Uninvited, more)] {
        if count > 0 {
            let detail = || format!("{}: {stored} stored, {wanted:?} acknowledged", what());
            return verdict.add(kind, count.into(), detail);
        }
    }
}
