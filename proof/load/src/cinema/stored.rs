//! What the store holds against what was acknowledged, event by event.
//!
//! The form of the events is that of `cinema/proto/cinema.proto`: streams named `show-<uuid>`, types `show-created.v1`,
//! `seat-reserved.v1` and `seat-reservation-cancelled.v1`, the seat's number in field 2.
//! Invariant: events of other runs are passed over.
//! Not here: the comparison (`gesta_kit::judge::seats`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{AllFrom, EventStore, RecordedEvent};
use gesta_kit::judge::seats::{SeatChange, StoredSeats};
use gesta_kit::verdict::Verdict;
use gesta_report::failure::{Context, Result};
use prost::Message as _;
use uuid::Uuid;

use super::ledger::Ledger;
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
    found: &mut Verdict,
) -> Result<u64> {
    let shows = (0..ledger.seats.shows_asked()).map(|show| (ledger.shows.id(show), show));
    let mut reader = Reader {
        ledger,
        shows: shows.collect(),
        stored: StoredSeats::new(&ledger.seats),
    };
    let store = CurrentStore::new(Arc::clone(store), None);
    let read = ask::read_all(&store, from, PATIENCE, |event| reader.look(&event));
    read.await.context("reading the events")?;
    let verdict = reader
        .stored
        .finish(|show| ledger.shows.id(show).to_string());
    let events = verdict.events_stored as u64;
    found.absorb(verdict);
    Ok(events)
}

struct Reader<'a> {
    ledger: &'a Ledger,
    shows: HashMap<Uuid, u32>,
    stored: StoredSeats<'a>,
}

impl Reader<'_> {
    fn look(&mut self, event: &RecordedEvent) {
        let id = event.stream.as_str().strip_prefix("show-");
        let id = id.and_then(|id| Uuid::try_parse(id).ok());
        let Some(show) = id.and_then(|id| self.shows.get(&id).copied()) else {
            return;
        };
        let (stream, revision, kind) = (&event.stream, event.revision, &event.event_type);
        let shows = self.ledger.shows;
        let seat = SeatEvent::decode(&event.data[..]).ok();
        let seat = seat.and_then(|seat| u16::try_from(seat.seat_number).ok());
        let seat = seat.filter(|seat| *seat < shows.seats);
        let (number, change) = match (kind.as_str(), seat) {
            ("show-created.v1", _) => return self.stored.created(show),
            ("seat-reserved.v1", Some(seat)) => (seat, SeatChange::Reserved),
            ("seat-reservation-cancelled.v1", Some(seat)) => (seat, SeatChange::Cancelled),
            _ => {
                return self.stored.unreadable(|| {
                    format!("{stream} revision {revision}: {kind} cannot be understood")
                });
            }
        };
        let place = self.ledger.seats.place(show, number);
        let told = || format!("{stream} revision {revision}: {kind}");
        self.stored.changed(place, change, told);
    }
}
