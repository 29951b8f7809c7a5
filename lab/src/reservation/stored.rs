//! What the store holds against what was acknowledged, event by event.
//!
//! The form of the events is that of `cinema/proto/cinema.proto`: streams named `show-<uuid>`, types `show-created.v1`,
//! `seat-reserved.v1` and `seat-reservation-cancelled.v1`, the seat's number in field 2.
//! Invariant: events of other runs are passed over.

use std::collections::HashMap;

use gesta_core::{AllFrom, EventStore, ReadAll, RecordedEvent};
use prost::Message as _;
use uuid::Uuid;

use super::ledger::{Existence, Ledger, What};
use crate::failure::{Context, Result};

/// Events per page.
const PAGE: usize = 5_000;
/// Most findings told in words.
const FINDINGS_MAX: usize = 10;

/// The part of an event about a seat that matters here.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct SeatEvent {
    /// The seat, as the server calls it.
    #[prost(uint32, tag = "2")]
    pub(crate) seat_number: u32,
}

/// What the check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredCheck {
    /// Events of this run.
    pub(crate) events: u64,
    /// Events that reserve a held seat or free a free one.
    pub(crate) held_twice: u64,
    /// Acknowledged, but not stored.
    pub(crate) lost: u64,
    /// Stored, though nobody asked for so many.
    pub(crate) uninvited: u64,
    /// Events that cannot be understood.
    pub(crate) unreadable: u64,
    /// The first findings in words.
    pub(crate) findings: Vec<String>,
}

impl StoredCheck {
    fn finding(&mut self, text: impl FnOnce() -> String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(text());
        }
    }
}

/// Reads every event behind `from` and compares it with the ledger.
pub(crate) async fn check(
    store: &dyn EventStore,
    from: AllFrom,
    ledger: &Ledger,
) -> Result<StoredCheck> {
    let mut reader = Reader::new(ledger);
    let mut request = ReadAll::forwards().from(from).limit(PAGE);
    loop {
        let page = store
            .read_all(request.clone())
            .await
            .context("reading the events")?;
        page.events.iter().for_each(|event| reader.look(event));
        if page.end {
            return Ok(reader.finish());
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
}

/// What is stored of a seat.
#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    reserved: u32,
    cancelled: u32,
}

impl Seat {
    fn is_held(self) -> bool {
        self.reserved > self.cancelled
    }
}

struct Reader<'a> {
    ledger: &'a Ledger,
    shows: HashMap<Uuid, u32>,
    created: Vec<u32>,
    seats: Vec<Seat>,
    check: StoredCheck,
}

impl<'a> Reader<'a> {
    fn new(ledger: &'a Ledger) -> Self {
        let count = ledger.shows_asked();
        Self {
            ledger,
            shows: (0..count)
                .map(|show| (ledger.shows.id(show), show))
                .collect(),
            created: vec![0; count as usize],
            seats: vec![Seat::default(); ledger.shows.place(count, 0) as usize],
            check: StoredCheck::default(),
        }
    }

    fn look(&mut self, event: &RecordedEvent) {
        let id = event.stream.as_str().strip_prefix("show-");
        let id = id.and_then(|id| Uuid::try_parse(id).ok());
        let Some(show) = id.and_then(|id| self.shows.get(&id).copied()) else {
            return;
        };
        self.check.events += 1;
        let reserves = match event.event_type.as_str() {
            "show-created.v1" => {
                self.created[show as usize] += 1;
                return;
            }
            "seat-reserved.v1" => true,
            "seat-reservation-cancelled.v1" => false,
            _ => return self.unreadable(event),
        };
        let shows = self.ledger.shows;
        let seat = SeatEvent::decode(&event.data[..])
            .ok()
            .and_then(|seat| u16::try_from(seat.seat_number).ok())
            .filter(|seat| *seat < shows.seats);
        let Some(number) = seat else {
            return self.unreadable(event);
        };
        let seat = &mut self.seats[shows.place(show, number) as usize];
        let twice = seat.is_held() == reserves;
        if reserves {
            seat.reserved += 1;
        } else {
            seat.cancelled += 1;
        }
        if twice {
            self.check.held_twice += 1;
            self.check.finding(|| {
                let (stream, revision, kind) = (&event.stream, event.revision, &event.event_type);
                format!(
                    "{stream} revision {revision}: {kind} of seat {number}, which was so already"
                )
            });
        }
    }

    fn unreadable(&mut self, event: &RecordedEvent) {
        self.check.unreadable += 1;
        self.check.finding(|| {
            let (stream, revision, kind) = (&event.stream, event.revision, &event.event_type);
            format!("{stream} revision {revision}: {kind} cannot be understood")
        });
    }

    fn finish(mut self) -> StoredCheck {
        for (show, created) in (0_u32..).zip(std::mem::take(&mut self.created)) {
            let wanted = match self.ledger.existence(show) {
                Existence::Created => 1..=1,
                Existence::Unknown => 0..=1,
                Existence::Unasked => 0..=0,
            };
            let id = self.ledger.shows.id(show);
            self.compare(&wanted, created, || format!("creations of show {id}"));
        }
        // By seat: reservations and cancellations, certain and possible.
        let mut wanted = vec![[0_u32; 4]; self.seats.len()];
        for entry in self.ledger.sorted_entries() {
            let kind = match entry.what {
                What::Reserved => 0,
                What::MaybeReserved => 1,
                What::Cancelled => 2,
                What::MaybeCancelled => 3,
                What::SeenReserved | What::SeenFree => continue,
            };
            wanted[entry.place as usize][kind] += 1;
        }
        for (place, seat) in (0_u32..).zip(std::mem::take(&mut self.seats)) {
            let [reserved, maybe_reserved, cancelled, maybe_cancelled] = wanted[place as usize];
            let shows = self.ledger.shows;
            let name = || {
                let (show, seat) = shows.of_place(place);
                format!("show {} seat {}", shows.id(show), seat)
            };
            let range = reserved..=reserved + maybe_reserved;
            self.compare(&range, seat.reserved, || {
                format!("reservations of {}", name())
            });
            let range = cancelled..=cancelled + maybe_cancelled;
            self.compare(&range, seat.cancelled, || {
                format!("cancellations of {}", name())
            });
        }
        self.check
    }

    fn compare(
        &mut self,
        wanted: &std::ops::RangeInclusive<u32>,
        stored: u32,
        name: impl FnOnce() -> String,
    ) {
        if wanted.contains(&stored) {
            return;
        }
        if stored < *wanted.start() {
            self.check.lost += u64::from(wanted.start() - stored);
        } else {
            self.check.uninvited += u64::from(stored - wanted.end());
        }
        self.check
            .finding(|| format!("{}: {stored} stored, {wanted:?} acknowledged", name()));
    }
}
