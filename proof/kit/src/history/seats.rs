//! Requests about seats, 16 bytes each, in the order in which they began and ended.
//!
//! Why so few: a load asks for millions of seats, and a history that costs it time or memory would change what is
//! measured. Seats are numbers, and names are made when they are needed.
//! Not here: how seats are asked for, and what an answer means.

use crate::history::Ticks;
use crate::operations::{Action, Operation, SeatAnswer, SeatSeen, SeatState};

/// End of a request whose outcome is not known: it may still take effect.
pub const NEVER: u32 = u32::MAX;
/// Entries and reads for which there is room from the beginning: a history that moves what it has would stop the load.
/// Memory that is not used costs nothing.
const ROOM: (usize, usize) = (1 << 24, 1 << 21);

/// What is known of a request about a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SeatEvent {
    /// A reservation was accepted.
    Reserved,
    /// A cancellation was accepted.
    Cancelled,
    /// It was said to be reserved.
    SeenReserved,
    /// It was said to be free.
    SeenFree,
    /// A reservation whose outcome is not known.
    MaybeReserved,
    /// A cancellation whose outcome is not known.
    MaybeCancelled,
}

/// A request about a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The seat ([`Seats::place`]).
    pub place: u32,
    /// When it was asked.
    pub begin: u32,
    /// When the answer came; [`NEVER`] if the outcome is not known.
    pub end: u32,
    /// What came of it.
    pub what: SeatEvent,
}

/// A read of a show: of all its seats at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The show.
    pub show: u32,
    /// When it was asked.
    pub begin: u32,
    /// When the answer came.
    pub end: u32,
    /// The seats that were reserved, one bit each.
    pub reserved: u128,
}

/// What is known of a show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Creation {
    /// It was never asked for.
    #[default]
    Unasked,
    /// It may have been created.
    Unknown,
    /// Its creation was acknowledged.
    Created,
}

/// Everything that was asked and answered about seats. Shows are numbered from 0, and so are the seats of each.
#[derive(Debug)]
pub struct Seats {
    per_show: u16,
    creations: Vec<Creation>,
    entries: Vec<Entry>,
    readings: Vec<Reading>,
    ticks: Ticks,
}

impl Seats {
    /// Nothing was asked of shows with so many seats each, at most 128.
    #[must_use]
    pub fn new(per_show: u16) -> Self {
        Self::counting(per_show, &Ticks::default())
    }

    /// The same, which counts on with other recorders of the run.
    #[must_use]
    pub fn counting(per_show: u16, ticks: &Ticks) -> Self {
        Self {
            per_show,
            creations: Vec::new(),
            entries: Vec::with_capacity(ROOM.0),
            readings: Vec::with_capacity(ROOM.1),
            ticks: ticks.clone(),
        }
    }

    /// The next number: of a beginning or an end.
    ///
    /// # Panics
    /// After four thousand million of them.
    #[must_use]
    pub fn tick(&self) -> u32 {
        let tick = u32::try_from(self.ticks.next()).unwrap_or(NEVER);
        assert!(
            tick < NEVER,
            "a run has at most two thousand million requests"
        );
        tick
    }

    /// Where the counter stands: what is recorded from now on is after it.
    #[must_use]
    pub fn now(&self) -> u32 {
        u32::try_from(self.ticks.now()).unwrap_or(NEVER)
    }

    /// How many seats a show has.
    #[must_use]
    pub fn per_show(&self) -> u16 {
        self.per_show
    }

    /// One number for a seat of a show.
    #[must_use]
    pub fn place(&self, show: u32, seat: u16) -> u32 {
        show * u32::from(self.per_show) + u32::from(seat)
    }

    /// Show and seat of that number.
    #[must_use]
    pub fn of_place(&self, place: u32) -> (u32, u16) {
        let seats = u32::from(self.per_show);
        let seat = u16::try_from(place % seats).expect("a seat");
        (place / seats, seat)
    }

    /// Writes down what came of a request about a seat.
    pub fn record(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Writes down a read.
    pub fn read(&mut self, reading: Reading) {
        self.readings.push(reading);
    }

    /// Writes down what is known of a show from now on.
    pub fn create(&mut self, show: u32, creation: Creation) {
        let index = show as usize;
        if index >= self.creations.len() {
            self.creations.resize(index + 1, Creation::Unasked);
        }
        self.creations[index] = creation;
    }

    /// What is known of a show.
    #[must_use]
    pub fn creation(&self, show: u32) -> Creation {
        let known = self.creations.get(show as usize).copied();
        known.unwrap_or_default()
    }

    /// The shows whose creation was acknowledged.
    pub fn created(&self) -> impl Iterator<Item = u32> + '_ {
        let numbered = (0_u32..).zip(&self.creations);
        numbered.filter_map(|(show, state)| (*state == Creation::Created).then_some(show))
    }

    /// Number of shows that were asked for.
    ///
    /// # Panics
    /// If they are more than 32 bits can count.
    #[must_use]
    pub fn shows_asked(&self) -> u32 {
        u32::try_from(self.creations.len()).expect("shows are counted in 32 bits")
    }

    /// All requests about seats, sorted by seat and beginning.
    #[must_use]
    pub fn sorted_entries(&self) -> Vec<Entry> {
        let mut all = self.entries.clone();
        all.sort_unstable_by_key(|entry| (entry.place, entry.begin));
        all
    }

    /// All reads, sorted by show and beginning.
    #[must_use]
    pub fn sorted_readings(&self) -> Vec<Reading> {
        let mut all = self.readings.clone();
        all.sort_unstable_by_key(|reading| (reading.show, reading.begin));
        all
    }

    /// Everything in the form that others can judge; `name` gives the name of a seat of a show. Who asked is not known.
    #[must_use]
    pub fn operations(&self, name: impl Fn(u32, u16) -> String) -> Vec<Operation> {
        let operation =
            |(show, seat): (u32, u16), begin: u32, end: u32, action: Action| Operation {
                key: name(show, seat),
                client: 0,
                call: begin.into(),
                answered: (end != NEVER).then_some(end.into()),
                action,
            };
        let mut all = Vec::new();
        for entry in &self.entries {
            let done = Some(SeatAnswer::Done);
            let refused = |seat| Some(SeatAnswer::Refused { seat });
            let action = match entry.what {
                SeatEvent::Reserved => Action::Reserve { output: done },
                SeatEvent::SeenReserved => Action::Reserve {
                    output: refused(None),
                },
                SeatEvent::MaybeReserved => Action::Reserve { output: None },
                SeatEvent::Cancelled => Action::Cancel { output: done },
                SeatEvent::SeenFree => Action::Cancel {
                    output: refused(Some(SeatState::Free)),
                },
                SeatEvent::MaybeCancelled => Action::Cancel { output: None },
            };
            let place = self.of_place(entry.place);
            all.push(operation(place, entry.begin, entry.end, action));
        }
        for reading in &self.readings {
            for seat in 0..self.per_show {
                let output = SeatSeen {
                    seat: match reading.reserved >> seat & 1 {
                        0 => SeatState::Free,
                        _ => SeatState::Reserved,
                    },
                };
                let place = (reading.show, seat);
                let action = Action::ReadSeat { output };
                all.push(operation(place, reading.begin, reading.end, action));
            }
        }
        all
    }
}
