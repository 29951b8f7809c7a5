//! What the store holds against what was acknowledged, event by event.
//!
//! The form of the events is that of `cinema/proto/cinema.proto`: streams named `show-<uuid>`, types `show-created.v1`,
//! `seat-reserved.v1` and `seat-reservation-cancelled.v1`, the seat's number in field 2.
//! Invariant: events of other runs are passed over.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{AllFrom, EventStore, RecordedEvent};
use gesta_report::failure::{Context, Result};
use prost::Message as _;
use uuid::Uuid;

use super::ledger::{Existence, Ledger, What};
use super::verdict::{Wrong, Wrongs};
use crate::machine::{CurrentStore, ask};

/// How long the store may be unavailable.
const PATIENCE: Duration = Duration::from_secs(60);

/// The part of an event about a seat that matters here.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SeatEvent {
    /// The seat, as the server calls it.
    #[prost(uint32, tag = "2")]
    pub seat_number: u32,
}

/// Reads every event after `from` and compares it with the ledger; gives how many are of this run.
pub async fn check(
    store: &Arc<dyn EventStore>,
    from: AllFrom,
    ledger: &Ledger,
    wrongs: &mut Wrongs,
) -> Result<u64> {
    let count = ledger.shows_asked();
    let shows = (0..count).map(|show| (ledger.shows.id(show), show));
    let mut reader = Reader {
        ledger,
        shows: shows.collect(),
        created: vec![0; count as usize],
        seats: vec![Seat::default(); ledger.shows.place(count, 0) as usize],
        events: 0,
        wrongs,
    };
    let store = CurrentStore::new(Arc::clone(store), None);
    let read = ask::read_all(&store, from, PATIENCE, |event| reader.look(&event));
    read.await.context("reading the events")?;
    Ok(reader.finish())
}

/// What is stored of a seat.
#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    reserved: u32,
    cancelled: u32,
}

struct Reader<'a> {
    ledger: &'a Ledger,
    shows: HashMap<Uuid, u32>,
    created: Vec<u32>,
    seats: Vec<Seat>,
    events: u64,
    wrongs: &'a mut Wrongs,
}

impl Reader<'_> {
    fn look(&mut self, event: &RecordedEvent) {
        let id = event.stream.as_str().strip_prefix("show-");
        let id = id.and_then(|id| Uuid::try_parse(id).ok());
        let Some(show) = id.and_then(|id| self.shows.get(&id).copied()) else {
            return;
        };
        self.events += 1;
        let (stream, revision, kind) = (&event.stream, event.revision, &event.event_type);
        let told = |what: &str| format!("{stream} revision {revision}: {kind} {what}");
        let shows = self.ledger.shows;
        let seat = SeatEvent::decode(&event.data[..]).ok();
        let seat = seat.and_then(|seat| u16::try_from(seat.seat_number).ok());
        let seat = seat.filter(|seat| *seat < shows.seats);
        let (number, reserves) = match (kind.as_str(), seat) {
            ("show-created.v1", _) => {
                self.created[show as usize] += 1;
                return;
            }
            ("seat-reserved.v1", Some(seat)) => (seat, true),
            ("seat-reservation-cancelled.v1", Some(seat)) => (seat, false),
            _ => {
                let told = || told("cannot be understood");
                return self.wrongs.add(Wrong::Unreadable, 1, told);
            }
        };
        let seat = &mut self.seats[shows.place(show, number) as usize];
        let is_held = seat.reserved > seat.cancelled;
        seat.reserved += u32::from(reserves);
        seat.cancelled += u32::from(!reserves);
        if is_held == reserves {
            let told = || told(&format!("of seat {number}, which was so already"));
            self.wrongs.add(Wrong::StoredTwice, 1, told);
        }
    }

    fn finish(self) -> u64 {
        let (ledger, wrongs) = (self.ledger, self.wrongs);
        let shows = ledger.shows;
        for (show, created) in (0_u32..).zip(self.created) {
            let wanted = match ledger.existence(show) {
                Existence::Created => 1..=1,
                Existence::Unknown => 0..=1,
                Existence::Unasked => 0..=0,
            };
            let what = || format!("creations of show {}", shows.id(show));
            compare(&wanted, created, wrongs, what);
        }
        // By seat: reservations and cancellations, certain and possible.
        let mut wanted = vec![[0_u32; 4]; self.seats.len()];
        for entry in ledger.sorted_entries() {
            let kind = match entry.what {
                What::Reserved => 0,
                What::MaybeReserved => 1,
                What::Cancelled => 2,
                What::MaybeCancelled => 3,
                What::SeenReserved | What::SeenFree => continue,
            };
            wanted[entry.place as usize][kind] += 1;
        }
        for (place, (seat, wanted)) in (0_u32..).zip(self.seats.into_iter().zip(wanted)) {
            let [reserved, maybe_reserved, cancelled, maybe_cancelled] = wanted;
            for (what, stored, from, more) in [
                ("reservations", seat.reserved, reserved, maybe_reserved),
                ("cancellations", seat.cancelled, cancelled, maybe_cancelled),
            ] {
                compare(&(from..=from + more), stored, wrongs, || {
                    let (show, seat) = shows.of_place(place);
                    format!("{what} of show {} seat {seat}", shows.id(show))
                });
            }
        }
        self.events
    }
}

fn compare(
    wanted: &RangeInclusive<u32>,
    stored: u32,
    wrongs: &mut Wrongs,
    what: impl FnOnce() -> String,
) {
    let (lost, more) = (
        wanted.start().saturating_sub(stored),
        stored.saturating_sub(*wanted.end()),
    );
    for (kind, count) in [(Wrong::NotStored, lost), (Wrong::Uninvited, more)] {
        if count > 0 {
            let told = || format!("{}: {stored} stored, {wanted:?} acknowledged", what());
            return wrongs.add(kind, count.into(), told);
        }
    }
}
