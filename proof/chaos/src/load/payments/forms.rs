//! What the log of a store with payments says, read event by event as it is stored, into the book that is judged
//! (`gesta_kit::history::payments`).
//!
//! The forms are read here by definitions of this crate's own, not by those of the product: changes of seats (see
//! `cinema/proto/cinema.proto`), the idempotency key of the command in the metadata of an event, and the requests and
//! states of timers.

use gesta_core::{RecordedEvent, Timestamp};
use gesta_kit::history::payments::{
    Deed, SeatBook, SeatChanged, SeatTimer, ShowSeat, StoredWithin,
};
use prost::Message as _;
use serde::Deserialize;
use uuid::Uuid;

/// The streams of the timers of unpaid reservations.
pub(super) const REQUESTS: &str = "$timers-{unpaid_reservations}";
const STATES: &str = "$timers-{unpaid_reservations}-state";

/// What an event about a seat has, as `cinema/proto` says.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ChangeForm {
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

/// Takes the next event of the log into the book.
pub(super) fn take(book: &mut SeatBook, event: &RecordedEvent, seen: StoredWithin) {
    let stream = event.stream.as_str();
    let read = match stream {
        REQUESTS => take_request(book, event, seen),
        STATES => take_state(book, event),
        _ if stream.starts_with("show-") => take_change(book, event, seen),
        _ => return,
    };
    book.events += 1;
    if let Err(why) = read {
        let (revision, kind) = (event.revision, &event.event_type);
        let text = format!("{stream} revision {revision}: {kind}: {why}");
        book.unreadable.push(text);
    }
}

fn take_change(book: &mut SeatBook, event: &RecordedEvent, seen: StoredWithin) -> Read {
    let deed = match event.event_type.as_str() {
        "show-created.v1" => return Ok(()),
        "seat-reserved.v1" => Deed::Reserve,
        "seat-paid.v1" => Deed::Pay,
        "seat-reservation-cancelled.v1" => Deed::Cancel,
        _ => return Err("is unknown".into()),
    };
    let changed = ChangeForm::decode(&event.data[..]).map_err(|error| error.to_string())?;
    let keyed: Keyed = json(&event.metadata)?;
    let show = Uuid::try_parse(&changed.show_id).map_err(|error| error.to_string())?;
    let number = changed.seat_number;
    let change = SeatChanged {
        place: (event.log.0, event.position.0),
        deed,
        at: changed.changed_at,
        key: keyed.key,
        seen,
    };
    book.changed(ShowSeat { show, number }, change);
    Ok(())
}

fn take_request(book: &mut SeatBook, event: &RecordedEvent, seen: StoredWithin) -> Read {
    if event.event_type.as_str() == "$metadata" {
        return Ok(());
    }
    let request: Request = json(&event.data)?;
    let because = (request.because.log, request.because.position);
    book.renewed(&request.key, because);
    if let (Some(due), Some(data)) = (request.due, request.data) {
        let due = Timestamp::parse(&due).map_err(|error| error.to_string())?;
        let timer = SeatTimer {
            key: request.key,
            due: due.0,
            because,
            reserved_at: data.reserved_at,
            seen,
        };
        book.timer_set(event.id.0, timer);
    }
    Ok(())
}

fn take_state(book: &mut SeatBook, event: &RecordedEvent) -> Read {
    if event.event_type.as_str() == "$metadata" {
        return Ok(());
    }
    let state: State = json(&event.data)?;
    if let Does::Fired { fired } = state.does {
        book.fired.extend(fired.ids);
    }
    Ok(())
}

fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> std::result::Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}
