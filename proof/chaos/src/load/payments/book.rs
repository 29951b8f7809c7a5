//! What the log of a store with payments says, read event by event as it is stored.
//!
//! The forms are read here by definitions of the lab's own, not by those of the product: changes of seats (see
//! `cinema/proto/cinema.proto`), the idempotency key of the command in the metadata of an event, and the requests and
//! states of timers.
//! Invariant: what a stream says later replaces nothing here; everything that was stored is in the book. So a book that
//! was written as events were stored must be part of one that was written later, and vice versa.

use std::collections::{BTreeMap, HashMap, HashSet};

use gesta_core::{RecordedEvent, Timestamp};
use prost::Message as _;
use serde::Deserialize;
use uuid::Uuid;

/// The streams of the timers of unpaid reservations.
pub(super) const REQUESTS: &str = "$timers-{unpaid_reservations}";
const STATES: &str = "$timers-{unpaid_reservations}-state";

/// A seat of a show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Seat {
    pub(super) show: Uuid,
    pub(super) number: u32,
}

impl Change {
    /// What was stored, whenever it was seen.
    fn stored(&self) -> (Place, Did, i64, &str) {
        (self.place, self.did, self.at, &self.key)
    }
}

impl Timer {
    /// What was stored, whenever it was seen.
    fn stored(&self) -> (&str, i64, Place, i64) {
        (&self.key, self.due, self.because, self.reserved_at)
    }
}

impl std::fmt::Display for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.show, self.number)
    }
}

/// What has happened to a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Did {
    Reserved,
    Paid,
    Cancelled,
}

/// When an event was stored, by the clock of the lab in microseconds: after the one time, and not after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) after: i64,
    pub(super) by: i64,
}

/// The place of an event: its log, and its position there.
pub(super) type Place = (u16, u64);

/// An event about a seat.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) place: Place,
    pub(super) did: Did,
    /// When it was decided, by the clock of the node that has.
    pub(super) at: i64,
    /// The key of the command.
    pub(super) key: String,
    pub(super) seen: Seen,
}

/// A timer that was set.
#[derive(Debug, Clone)]
pub(super) struct Timer {
    pub(super) key: String,
    pub(super) due: i64,
    /// The reservation because of which it was set.
    pub(super) because: Place,
    pub(super) reserved_at: i64,
    pub(super) seen: Seen,
}

/// Everything that was stored.
#[derive(Debug, Default, Clone)]
pub(super) struct Book {
    pub(super) seats: BTreeMap<Seat, Vec<Change>>,
    pub(super) timers: BTreeMap<Uuid, Timer>,
    /// The last place because of which the timer of a key was set or cancelled, by key and log.
    last: HashMap<(String, u16), u64>,
    pub(super) fired: HashSet<Uuid>,
    /// Timers that were set by two events.
    pub(super) set_twice: Vec<Uuid>,
    pub(super) unreadable: Vec<String>,
    pub(super) events: u64,
}

/// What an event about a seat has, as `cinema/proto` says.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SeatChanged {
    #[prost(string, tag = "1")]
    pub(super) show_id: String,
    #[prost(uint32, tag = "2")]
    pub(super) seat_number: u32,
    #[prost(int64, tag = "3")]
    pub(super) changed_at: i64,
}

#[derive(Deserialize)]
struct Keyed {
    #[serde(rename = "$idempotencyKey")]
    key: String,
}

#[derive(Deserialize)]
struct Because {
    log: u16,
    position: u64,
}

/// A timer is set or cancelled.
#[derive(Deserialize)]
struct Request {
    key: String,
    due: Option<String>,
    data: Option<Reservation>,
    because: Because,
}

#[derive(Deserialize)]
struct Reservation {
    reserved_at: i64,
}

#[derive(Deserialize)]
struct State {
    does: Does,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Does {
    Fired { fired: Fired },
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Fired {
    ids: Vec<Uuid>,
}

type Read = std::result::Result<(), String>;

impl Book {
    /// Takes the next event of the log.
    pub(super) fn take(&mut self, event: &RecordedEvent, seen: Seen) {
        let stream = event.stream.as_str();
        let read = match stream {
            REQUESTS => self.take_request(event, seen),
            STATES => self.take_state(event),
            _ if stream.starts_with("show-") => self.take_change(event, seen),
            _ => return,
        };
        self.events += 1;
        if let Err(why) = read {
            let (revision, kind) = (event.revision, &event.event_type);
            let told = format!("{stream} revision {revision}: {kind}: {why}");
            self.unreadable.push(told);
        }
    }

    fn take_change(&mut self, event: &RecordedEvent, seen: Seen) -> Read {
        let did = match event.event_type.as_str() {
            "show-created.v1" => return Ok(()),
            "seat-reserved.v1" => Did::Reserved,
            "seat-paid.v1" => Did::Paid,
            "seat-reservation-cancelled.v1" => Did::Cancelled,
            _ => return Err("is unknown".into()),
        };
        let changed = SeatChanged::decode(&event.data[..]).map_err(|error| error.to_string())?;
        let keyed: Keyed = json(&event.metadata)?;
        let show = Uuid::try_parse(&changed.show_id).map_err(|error| error.to_string())?;
        let number = changed.seat_number;
        let change = Change {
            place: (event.log.0, event.position.0),
            did,
            at: changed.changed_at,
            key: keyed.key,
            seen,
        };
        let seat = Seat { show, number };
        self.seats.entry(seat).or_default().push(change);
        Ok(())
    }

    fn take_request(&mut self, event: &RecordedEvent, seen: Seen) -> Read {
        if event.event_type.as_str() == "$metadata" {
            return Ok(());
        }
        let asked: Request = json(&event.data)?;
        let Because { log, position } = asked.because;
        let last = self.last.entry((asked.key.clone(), log)).or_default();
        *last = (*last).max(position);
        if let (Some(due), Some(data)) = (asked.due, asked.data) {
            let due = Timestamp::parse(&due).map_err(|error| error.to_string())?;
            let timer = Timer {
                key: asked.key,
                due: due.0,
                because: (log, position),
                reserved_at: data.reserved_at,
                seen,
            };
            if self.timers.insert(event.id.0, timer).is_some() {
                self.set_twice.push(event.id.0);
            }
        }
        Ok(())
    }

    fn take_state(&mut self, event: &RecordedEvent) -> Read {
        if event.event_type.as_str() == "$metadata" {
            return Ok(());
        }
        let state: State = json(&event.data)?;
        if let Does::Fired { fired } = state.does {
            self.fired.extend(fired.ids);
        }
        Ok(())
    }

    /// What of this a book lacks that was written later, or says otherwise, in words.
    pub(super) fn missing_in(&self, later: &Self) -> Vec<String> {
        let mut missing = Vec::new();
        for (seat, changes) in &self.seats {
            let now = later.seats.get(seat).map_or(&[][..], Vec::as_slice);
            for (at, change) in changes.iter().enumerate() {
                let (was, is) = (change.stored(), now.get(at).map(Change::stored));
                if is != Some(was) {
                    missing.push(format!("seat {seat}: {was:?} was read, and then {is:?}"));
                    break;
                }
            }
        }
        for (id, timer) in &self.timers {
            let (was, is) = (timer.stored(), later.timers.get(id).map(Timer::stored));
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
    pub(super) fn is_over(&self, id: Uuid, timer: &Timer) -> bool {
        let (log, position) = timer.because;
        let last = self.last.get(&(timer.key.clone(), log));
        self.fired.contains(&id) || last.is_some_and(|last| *last > position)
    }
}

fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> std::result::Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}
