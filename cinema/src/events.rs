//! The form of events on disk: Protocol Buffers, the messages of `messages`.
//!
//! Why the messages are not the domain's events: what is stored is readable for ever, the domain may change daily.
//! Invariant: numbers of fields and names of types are never reused for something else.
//! Not here: what the events mean (`domain`), their bytes (`messages`).

use gesta::entity::{CodecError, Encoded, EventCodec, Stored};
use gesta::{ContentType, EventType, Timestamp};
use prost::Message;
use uuid::Uuid;

use crate::domain::{Command, Event, Price, Seat, SeatStatus, Show};
use crate::messages;

/// Category of the streams. The stream of a show is named `show-<uuid>`.
pub const CATEGORY: &str = "show";
// Types of events on disk.
pub(crate) const SHOW_CREATED: &str = "show-created.v1";
pub(crate) const SEAT_RESERVED: &str = "seat-reserved.v1";
pub(crate) const SEAT_RESERVATION_CANCELLED: &str = "seat-reservation-cancelled.v1";
pub(crate) const SEAT_PAID: &str = "seat-paid.v1";

const CURRENCY: &str = "EUR";

/// Version of the form of snapshots. It must be raised whenever the state means something else.
pub const SNAPSHOT_VERSION: u32 = 3;

/// The codec of the events of shows.
#[derive(Clone, Copy, Debug)]
pub struct ShowEvents;

impl EventCodec<Event> for ShowEvents {
    fn encode(&self, event: &Event) -> Result<Encoded, CodecError> {
        let (event_type, data) = match event {
            Event::ShowCreated {
                show_id,
                title,
                seats,
                at,
            } => {
                let created = messages::ShowCreated {
                    show_id: show_id.to_string(),
                    title: title.to_string(),
                    seats: stored_seats(seats),
                    created_at: at.as_micros(),
                };
                (SHOW_CREATED, created.encode_to_vec())
            }
            Event::SeatReserved { show_id, seat, at } => {
                (SEAT_RESERVED, stored_change(*show_id, *seat, *at))
            }
            Event::SeatReservationCancelled { show_id, seat, at } => (
                SEAT_RESERVATION_CANCELLED,
                stored_change(*show_id, *seat, *at),
            ),
            Event::SeatPaid { show_id, seat, at } => {
                (SEAT_PAID, stored_change(*show_id, *seat, *at))
            }
        };
        let event_type = EventType::new(event_type)
            .map_err(|error| CodecError::Unwritable(error.to_string()))?;
        Ok(Encoded {
            event_type,
            content_type: ContentType::Binary,
            data: data.into(),
        })
    }

    fn decode(&self, stored: Stored<'_>) -> Result<Event, CodecError> {
        let event = match stored.event_type {
            SHOW_CREATED => show_created(stored.data),
            SEAT_RESERVED => change_of_seat(stored.data)
                .map(|(show_id, seat, at)| Event::SeatReserved { show_id, seat, at }),
            SEAT_RESERVATION_CANCELLED => change_of_seat(stored.data)
                .map(|(show_id, seat, at)| Event::SeatReservationCancelled { show_id, seat, at }),
            SEAT_PAID => change_of_seat(stored.data).map(|(show_id, seat, at)| Event::SeatPaid {
                show_id,
                seat,
                at,
            }),
            unknown => return Err(CodecError::UnknownType(unknown.to_owned())),
        };
        event.map_err(|detail| CodecError::Malformed {
            event_type: stored.event_type.to_owned(),
            detail,
        })
    }
}

fn show_created(data: &[u8]) -> Result<Event, String> {
    let created: messages::ShowCreated = read(data)?;
    Ok(Event::ShowCreated {
        show_id: show_id(&created.show_id)?,
        title: created.title.into(),
        seats: seats(&created.seats)?,
        at: Timestamp(created.created_at),
    })
}

fn stored_change(show_id: Uuid, seat: u32, at: Timestamp) -> Vec<u8> {
    let changed = messages::SeatChanged {
        show_id: show_id.to_string(),
        seat_number: seat,
        changed_at: at.as_micros(),
    };
    changed.encode_to_vec()
}

/// Reads what has happened to a seat: of which show, to which seat, and when.
///
/// # Errors
/// The text says what is wrong with the bytes.
pub fn change_of_seat(data: &[u8]) -> Result<(Uuid, u32, Timestamp), String> {
    let changed: messages::SeatChanged = read(data)?;
    let at = Timestamp(changed.changed_at);
    Ok((show_id(&changed.show_id)?, changed.seat_number, at))
}

fn read<M: Message + Default>(data: &[u8]) -> Result<M, String> {
    M::decode(data).map_err(|error| error.to_string())
}

/// Returns what tells a command from others with the same idempotency key. It never changes: a hash of it is stored.
#[must_use]
pub fn form_of_command(command: &Command) -> Vec<u8> {
    let form = match command {
        Command::CreateShow {
            show_id,
            title,
            max_seats,
        } => format!("create {show_id} {max_seats} {title}"),
        Command::ReserveSeat { seat } => format!("reserve {seat}"),
        Command::CancelReservation { seat } => format!("cancel {seat}"),
        Command::PaySeat { seat } => format!("pay {seat}"),
        Command::GiveBackUnpaid { seat, reserved_at } => format!("give back {seat} {reserved_at}"),
    };
    form.into_bytes()
}

/// Writes a show as the bytes of a snapshot.
///
/// # Errors
/// None; the signature is that of the runtime.
pub fn snapshot_of(show: &Show) -> Result<Vec<u8>, String> {
    let snapshot = messages::ShowSnapshot {
        show_id: show.id.to_string(),
        title: show.title.to_string(),
        seats: stored_seats(&show.seats),
    };
    Ok(snapshot.encode_to_vec())
}

/// Reads the show of a snapshot.
///
/// # Errors
/// The text says what is wrong with the bytes.
pub fn show_of(snapshot: &[u8]) -> Result<Show, String> {
    let snapshot: messages::ShowSnapshot = read(snapshot)?;
    Ok(Show {
        id: show_id(&snapshot.show_id)?,
        title: snapshot.title.into(),
        seats: seats(&snapshot.seats)?,
    })
}

/// Returns how many seats a show was created with: the read model needs nothing else of the event.
///
/// # Errors
/// The text says what is wrong with the bytes.
pub fn seats_created(data: &[u8]) -> Result<usize, String> {
    read(data).map(|created: messages::ShowCreated| created.seats.len())
}

fn show_id(text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text).map_err(|error| format!("show_id: {error}"))
}

fn stored_seats(seats: &[Seat]) -> Vec<messages::Seat> {
    let stored = |(number, seat): (u32, &Seat)| messages::Seat {
        number,
        status: match seat.status {
            SeatStatus::Available => messages::SeatStatus::Available.into(),
            SeatStatus::Reserved => messages::SeatStatus::Reserved.into(),
            SeatStatus::Paid => messages::SeatStatus::Paid.into(),
        },
        reserved_at: seat.reserved_at.map_or(0, Timestamp::as_micros),
        price: Some(messages::Money {
            amount: seat.price.to_string(),
            currency: CURRENCY.to_owned(),
        }),
    };
    (0..).zip(seats).map(stored).collect()
}

fn seats(stored: &[messages::Seat]) -> Result<Vec<Seat>, String> {
    if stored.is_empty() {
        return Err("a show must have a seat".into());
    }
    (0..).zip(stored).map(seat).collect()
}

fn seat((number, stored): (u32, &messages::Seat)) -> Result<Seat, String> {
    if stored.number != number {
        return Err(format!("seat {} stands in place {number}", stored.number));
    }
    let status = match stored.status() {
        messages::SeatStatus::Available => SeatStatus::Available,
        messages::SeatStatus::Reserved => SeatStatus::Reserved,
        messages::SeatStatus::Paid => SeatStatus::Paid,
        messages::SeatStatus::Unspecified => return Err(format!("seat {number} has no status")),
    };
    let price = stored.price.as_ref().and_then(price);
    let price = price.ok_or_else(|| format!("seat {number} has no price in {CURRENCY}"))?;
    Ok(Seat {
        status,
        price,
        reserved_at: (stored.reserved_at != 0).then_some(Timestamp(stored.reserved_at)),
    })
}

/// Reads a price written as `100.00`, and in no other way.
fn price(money: &messages::Money) -> Option<Price> {
    let cents = money.amount.replacen('.', "", 1).parse().ok()?;
    let price = Price { cents };
    (money.currency == CURRENCY && price.to_string() == money.amount).then_some(price)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::INITIAL_PRICE;

    const ID: Uuid = Uuid::from_u128(0x0190_57a6_3f0e_7c3a_9d1b_2f6c_5e4a_8b70);
    const AT: Timestamp = Timestamp(1_790_000_000_000_001);

    fn show_created(count: usize) -> Event {
        let seat = Seat {
            status: SeatStatus::Available,
            price: INITIAL_PRICE,
            reserved_at: None,
        };
        Event::ShowCreated {
            show_id: ID,
            title: "Seven Samurai".into(),
            seats: vec![seat; count],
            at: AT,
        }
    }

    fn encoded(event: &Event) -> Encoded {
        ShowEvents.encode(event).expect("every event has a form")
    }

    fn decoded(event_type: &str, data: &[u8]) -> Result<Event, CodecError> {
        let stored = Stored {
            event_type,
            content_type: ContentType::Binary,
            data: &bytes::Bytes::copy_from_slice(data),
        };
        ShowEvents.decode(stored)
    }

    /// The bytes on disk must never change: old events stay readable only if new ones look the same.
    #[test]
    fn bytes_on_disk_are_these() {
        let id: &[u8] = b"\x0a\x24019057a6-3f0e-7c3a-9d1b-2f6c5e4a8b70";
        let at = b"\x81\xc0\x97\xd1\xed\xff\x96\x03";
        let seat = |number: u8| {
            [
                &b"\x1a\x13\x08"[..],
                &[number],
                b"\x10\x01\x1a\x0d\x0a\x06100.00\x12\x03EUR",
            ]
            .concat()
        };
        let golden = [
            (
                show_created(2),
                SHOW_CREATED,
                [
                    id,
                    b"\x12\x0dSeven Samurai",
                    b"\x1a\x11\x10\x01\x1a\x0d\x0a\x06100.00\x12\x03EUR",
                    &seat(1),
                    b"\x20",
                    at,
                ]
                .concat(),
            ),
            (
                Event::SeatReserved {
                    show_id: ID,
                    seat: 7,
                    at: AT,
                },
                SEAT_RESERVED,
                [id, b"\x10\x07\x18", at].concat(),
            ),
            (
                Event::SeatReservationCancelled {
                    show_id: ID,
                    seat: 7,
                    at: AT,
                },
                SEAT_RESERVATION_CANCELLED,
                [id, b"\x10\x07\x18", at].concat(),
            ),
            (
                Event::SeatPaid {
                    show_id: ID,
                    seat: 7,
                    at: AT,
                },
                SEAT_PAID,
                [id, b"\x10\x07\x18", at].concat(),
            ),
        ];
        for (event, event_type, bytes) in golden {
            let form = encoded(&event);
            assert_eq!(form.event_type.as_str(), event_type);
            assert_eq!(form.data, bytes, "{event:?}");
            assert_eq!(decoded(event_type, &bytes).expect("readable"), event);
        }
    }

    #[test]
    fn sizes_are_those_of_the_published_application() {
        let created = encoded(&show_created(50)).data;
        assert!((1_050..1_200).contains(&created.len()), "{}", created.len());
        assert_eq!(seats_created(&created), Ok(50));
        let reserved = Event::SeatReserved {
            show_id: ID,
            seat: 50,
            at: AT,
        };
        let size = encoded(&reserved).data.len();
        assert!((45..56).contains(&size), "{size}");
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let unknown = decoded("seat-sold.v1", b"").expect_err("unknown");
        assert_eq!(unknown, CodecError::UnknownType("seat-sold.v1".into()));
        let good = encoded(&show_created(2)).data;
        let replaced = |from: &[u8], to: &[u8]| {
            let at = good.windows(from.len()).position(|part| part == from);
            let at = at.expect("present");
            [&good[..at], to, &good[at + from.len()..]].concat()
        };
        for (bytes, expected) in [
            (good[..50].to_vec(), "buffer"),
            (b"".to_vec(), "show_id"),
            (replaced(b"019057a6", b"x19057a6"), "show_id"),
            (replaced(b"\x08\x01\x10", b"\x08\x02\x10"), "place 1"),
            (replaced(b"\x10\x01", b"\x10\x00"), "no status"),
            (replaced(b"100.00", b"1000.0"), "no price"),
            (replaced(b"100.00", b"-10.00"), "no price"),
            (replaced(b"EUR", b"USD"), "no price"),
        ] {
            let error = decoded(SHOW_CREATED, &bytes).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
        let seatless = messages::ShowCreated {
            show_id: ID.to_string(),
            ..messages::ShowCreated::default()
        };
        assert!(decoded(SHOW_CREATED, &seatless.encode_to_vec()).is_err());
    }

    #[test]
    fn a_snapshot_holds_the_show() {
        let mut show = Show {
            id: ID,
            title: "Ran".into(),
            seats: vec![
                Seat {
                    status: SeatStatus::Available,
                    price: Price { cents: 5 },
                    reserved_at: None,
                };
                3
            ],
        };
        show.seats[1].status = SeatStatus::Reserved;
        show.seats[1].reserved_at = Some(AT);
        show.seats[2].status = SeatStatus::Paid;
        let snapshot = snapshot_of(&show).expect("every show has a form");
        assert_eq!(show_of(&snapshot), Ok(show));
        assert!(show_of(&snapshot[..20]).is_err());
    }
}
