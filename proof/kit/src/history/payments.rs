//! Seats that must be paid in time: what the log says of them, and what users asked and were answered.
//!
//! The log is written down event by event as it is stored, with what is known of when that was. How events look, who
//! reads them says.
//! Invariant: what is stored later replaces nothing here; so a book that was written as events were stored must be part
//! of one that was written later, and vice versa.
//! Not here: what must hold (`judge::payments`, `judge::replies`).

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use crate::operations::{Action, Operation, SeatAnswer, SeatSeen, SeatState};

/// A seat of a show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShowSeat {
    /// The show.
    pub show: Uuid,
    /// The number of the seat.
    pub number: u32,
}

impl std::fmt::Display for ShowSeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.show, self.number)
    }
}

/// What a command does to a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// It reserves it.
    Reserve,
    /// It pays it.
    Pay,
    /// It frees it.
    Cancel,
}

/// When an event was stored, by one clock in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredWithin {
    /// It was not yet then.
    pub after: i64,
    /// It was then.
    pub by: i64,
}

/// The place of an event: its log, and its position there.
pub type EventPlace = (u16, u64);

/// An event about a seat.
#[derive(Debug, Clone)]
pub struct SeatChanged {
    /// Its place.
    pub place: EventPlace,
    /// What was done.
    pub deed: Deed,
    /// When that was decided, by the clock of the node that has, in microseconds.
    pub at: i64,
    /// The key of the command.
    pub key: String,
    /// When it was stored.
    pub seen: StoredWithin,
}

/// A timer that was set.
#[derive(Debug, Clone)]
pub struct SeatTimer {
    /// What it is for: the timers of a key replace each other.
    pub key: String,
    /// When it is to fire, in microseconds.
    pub due: i64,
    /// The reservation because of which it was set.
    pub because: EventPlace,
    /// When that was decided.
    pub reserved_at: i64,
    /// When it was stored.
    pub seen: StoredWithin,
}

/// Everything that was stored of seats and their timers.
#[derive(Debug, Default, Clone)]
pub struct SeatBook {
    /// The changes of each seat, in order.
    pub seats: BTreeMap<ShowSeat, Vec<SeatChanged>>,
    /// The timers that were set.
    pub timers: BTreeMap<Uuid, SeatTimer>,
    /// The last place because of which the timer of a key was set or cancelled, by key and log.
    last: HashMap<(String, u16), u64>,
    /// The timers that have fired.
    pub fired: HashSet<Uuid>,
    /// Timers that were set by two events.
    pub set_twice: Vec<Uuid>,
    /// Events that could not be understood, in words.
    pub unreadable: Vec<String>,
    /// How many events were written down.
    pub events: u64,
}

impl SeatChanged {
    /// What was stored, whenever it was seen.
    fn stored(&self) -> (EventPlace, Deed, i64, &str) {
        (self.place, self.deed, self.at, &self.key)
    }
}

impl SeatTimer {
    /// What was stored, whenever it was seen.
    fn stored(&self) -> (&str, i64, EventPlace, i64) {
        (&self.key, self.due, self.because, self.reserved_at)
    }
}

impl SeatBook {
    /// A seat has changed.
    pub fn changed(&mut self, seat: ShowSeat, change: SeatChanged) {
        self.seats.entry(seat).or_default().push(change);
    }

    /// The timer of a key was set or cancelled, because of an event.
    pub fn renewed(&mut self, key: &str, (log, position): EventPlace) {
        let last = self.last.entry((key.to_owned(), log)).or_default();
        *last = (*last).max(position);
    }

    /// A timer was set.
    pub fn timer_set(&mut self, id: Uuid, timer: SeatTimer) {
        self.renewed(&timer.key.clone(), timer.because);
        if self.timers.insert(id, timer).is_some() {
            self.set_twice.push(id);
        }
    }

    /// What of this a book lacks that was written later, or says otherwise, in words.
    #[must_use]
    pub fn missing_in(&self, later: &Self) -> Vec<String> {
        let mut missing = Vec::new();
        for (seat, changes) in &self.seats {
            let now = later.seats.get(seat).map_or(&[][..], Vec::as_slice);
            for (at, change) in changes.iter().enumerate() {
                let (was, is) = (change.stored(), now.get(at).map(SeatChanged::stored));
                if is != Some(was) {
                    missing.push(format!("seat {seat}: {was:?} was read, and then {is:?}"));
                    break;
                }
            }
        }
        for (id, timer) in &self.timers {
            let (was, is) = (timer.stored(), later.timers.get(id).map(SeatTimer::stored));
            if is != Some(was) {
                missing.push(format!("timer {id}: {was:?} was read, and then {is:?}"));
            }
        }
        for (key, was) in &self.last {
            let is = later.last.get(key);
            if is < Some(was) {
                missing.push(format!("timer of {key:?}: {was} was read, and then {is:?}"));
            }
        }
        let fired = self.fired.difference(&later.fired);
        missing.extend(fired.map(|id| format!("timer {id} was read to have fired, and then not")));
        let (was, is) = (self.events, later.events);
        if is < was {
            missing.push(format!("{was} events were read, and then {is}"));
        }
        missing
    }

    /// Returns whether a timer has fired, or was cancelled or replaced.
    #[must_use]
    pub fn is_over(&self, id: Uuid, timer: &SeatTimer) -> bool {
        let (log, position) = timer.because;
        let last = self.last.get(&(timer.key.clone(), log));
        self.fired.contains(&id) || last.is_some_and(|last| *last > position)
    }
}

/// What an answer says about a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeatSight {
    /// It is free.
    Free,
    /// It is reserved.
    Reserved,
    /// It is paid.
    Paid,
    /// It is reserved, and perhaps paid.
    Held,
}

impl SeatSight {
    /// True if a seat that is so can be said to be like that.
    #[must_use]
    pub fn fits(self, said: Self) -> bool {
        self == said || said == Self::Held && self != Self::Free
    }

    /// None if it is not said exactly.
    fn state(self) -> Option<SeatState> {
        match self {
            Self::Free => Some(SeatState::Free),
            Self::Reserved => Some(SeatState::Reserved),
            Self::Paid => Some(SeatState::Paid),
            Self::Held => None,
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeatReply {
    /// It is done.
    Done,
    /// Not done, because the seat was so.
    Refused(SeatSight),
    /// No answer in all the time.
    Open,
}

/// A command of a user, however often it was sent. Beginnings and ends are numbers of one counter.
#[derive(Debug, Clone)]
pub struct SeatCommand {
    /// Its key.
    pub key: String,
    /// Its seat.
    pub seat: ShowSeat,
    /// What it does.
    pub deed: Deed,
    /// When it was first sent.
    pub first: u64,
    /// When it was sent the last time.
    pub begin: u64,
    /// When the answer came.
    pub end: u64,
    /// An attempt before had no answer.
    pub in_doubt: bool,
    /// The answer.
    pub reply: SeatReply,
}

/// A show that was read.
#[derive(Debug, Clone)]
pub struct ShowRead {
    /// The show.
    pub show: Uuid,
    /// When it was asked for.
    pub begin: u64,
    /// When the answer came.
    pub end: u64,
    /// Its seats.
    pub seats: Vec<SeatSight>,
}

/// All that was asked and answered in a round.
#[derive(Debug, Default)]
pub struct SeatRound {
    /// What the keys of the round begin with.
    pub prefix: String,
    /// The commands.
    pub asked: Vec<SeatCommand>,
    /// The reads.
    pub reads: Vec<ShowRead>,
    /// Answers that no request deserves, in words.
    pub strange: Vec<String>,
    /// Commands that had no answer although nothing was in the way of one, in words.
    pub given_up: Vec<String>,
}

impl SeatRound {
    /// Everything in the form that others can judge, with what timers have done of the round's reservations. What a
    /// timer does nobody asks for, and nobody is told when it was done: so it is an operation that began with the
    /// reservation before it, and has no answer.
    #[must_use]
    pub fn operations(&self, book: &SeatBook) -> Vec<Operation> {
        let mut operations = Vec::new();
        let mut begins: HashMap<&str, u64> = HashMap::new();
        let mut seats: HashSet<ShowSeat> = HashSet::new();
        for asked in &self.asked {
            begins.insert(&asked.key, asked.first);
            seats.insert(asked.seat);
            operations.extend(of_command(asked));
        }
        for (seat, changes) in &book.seats {
            for pair in changes.windows(2) {
                let is_timer = pair[1].deed == Deed::Cancel && !begins.contains_key(&*pair[1].key);
                let begin = begins.get(pair[0].key.as_str()).filter(|_| is_timer);
                if let Some(begin) = begin {
                    let action = Action::GiveBack { output: None };
                    operations.push(operation(*seat, *begin, None, action));
                }
            }
        }
        for read in &self.reads {
            for (number, saw) in (0..).zip(&read.seats) {
                let show = read.show;
                let seat = ShowSeat { show, number };
                // Nobody ever had the others, and nobody said so.
                if let Some(state) = saw.state()
                    && (seats.contains(&seat) || state != SeatState::Free)
                {
                    let output = SeatSeen { seat: state };
                    let action = Action::ReadSeat { output };
                    operations.push(operation(seat, read.begin, Some(read.end), action));
                }
            }
        }
        operations
    }
}

fn operation(seat: ShowSeat, call: u64, answered: Option<u64>, action: Action) -> Operation {
    Operation {
        key: format!("seat-{}-{}", seat.show, seat.number),
        client: 0,
        call,
        answered,
        action,
    }
}

/// A command takes effect once, however often it is sent. One that is refused after an attempt without an answer may
/// have taken effect all the same.
fn of_command(asked: &SeatCommand) -> Vec<Operation> {
    let of = |call, answered, output| {
        let action = match asked.deed {
            Deed::Reserve => Action::Reserve { output },
            Deed::Pay => Action::Pay { output },
            Deed::Cancel => Action::Cancel { output },
        };
        operation(asked.seat, call, answered, action)
    };
    match asked.reply {
        SeatReply::Done => vec![of(asked.first, Some(asked.end), Some(SeatAnswer::Done))],
        SeatReply::Open => vec![of(asked.first, None, None)],
        SeatReply::Refused(saw) => {
            let refused = SeatAnswer::Refused { seat: saw.state() };
            let mut both = vec![of(asked.begin, Some(asked.end), Some(refused))];
            if asked.in_doubt {
                both.push(of(asked.first, None, None));
            }
            both
        }
    }
}
