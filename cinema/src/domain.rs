//! A show and its seats: what may happen to them, and what follows from it.
//!
//! Why this is pure: the same few lines decide in production, in tests and when history is replayed.
//! Invariants: a seat is reserved at most once until its reservation is cancelled; seats are numbered from 0 to one
//! below their count, as in the application whose measurements were published.
//! Not here: everything else.

use gesta::Timestamp;
use gesta::entity::{Context, Decider};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Most seats of a show.
pub const SEATS_MAX: u32 = 100;
/// Longest title, in characters.
pub const TITLE_CHARS_MAX: usize = 200;
/// Price of a seat at first.
pub const INITIAL_PRICE: Price = Price { cents: 10_000 };

/// An amount in euro.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Price {
    /// Number of hundredths of a euro.
    pub cents: u32,
}

impl std::fmt::Display for Price {
    /// Shows the amount with two decimals: `100.00`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02}", self.cents / 100, self.cents % 100)
    }
}

/// Tells whether a seat can be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeatStatus {
    /// The seat can be reserved.
    Available,
    /// The seat is reserved.
    Reserved,
    /// The seat is reserved and paid.
    Paid,
}

/// A seat. Its number is its index in the show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Tells whether the seat can be reserved.
    pub status: SeatStatus,
    /// Price of the seat.
    pub price: Price,
    /// Time of the reservation, by which one is told from others of the seat; none if the seat is available.
    pub reserved_at: Option<Timestamp>,
}

const NEW_SEAT: Seat = Seat {
    status: SeatStatus::Available,
    price: INITIAL_PRICE,
    reserved_at: None,
};

/// A show. A show without seats has not been created.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Show {
    /// Identity of the show.
    pub id: Uuid,
    /// Title of what is shown.
    pub title: Box<str>,
    /// Seats of the show; the first has number 0.
    pub seats: Vec<Seat>,
}

/// A command to a show.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Command {
    /// The show is to be created with seats 0 to `max_seats - 1`, 1 to [`SEATS_MAX`] of them.
    CreateShow {
        show_id: Uuid,
        title: String,
        max_seats: u32,
    },
    /// A seat is to be reserved.
    ReserveSeat { seat: u32 },
    /// The reservation of a seat is to be cancelled.
    CancelReservation { seat: u32 },
    /// A seat is paid.
    PaySeat { seat: u32 },
    /// The seat is to be given back, if it is still not paid, and its reservation is that of this time, in microseconds
    /// since 1970.
    GiveBackUnpaid { seat: u32, reserved_at: i64 },
}

/// An event of a show.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Event {
    /// The show was created.
    ShowCreated {
        show_id: Uuid,
        title: Box<str>,
        seats: Vec<Seat>,
        at: Timestamp,
    },
    /// A seat was reserved.
    SeatReserved {
        show_id: Uuid,
        seat: u32,
        at: Timestamp,
    },
    /// The reservation of a seat was cancelled.
    SeatReservationCancelled {
        show_id: Uuid,
        seat: u32,
        at: Timestamp,
    },
    /// A seat was paid.
    SeatPaid {
        show_id: Uuid,
        seat: u32,
        at: Timestamp,
    },
}

/// The reason why a command was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Rejection {
    /// A show of this identity was created before.
    ShowAlreadyExists,
    /// The show was never created.
    ShowNotExists,
    /// The title is empty.
    TitleEmpty,
    /// The title has more than [`TITLE_CHARS_MAX`] characters.
    TitleTooLong,
    /// The show has no seat.
    TooFewSeats,
    /// The show has more than [`SEATS_MAX`] seats.
    TooManySeats,
    /// The show has no seat of this number.
    SeatNotExists,
    /// The seat is reserved.
    SeatNotAvailable,
    /// The seat is not reserved, so there is nothing to cancel or to pay.
    SeatNotReserved,
    /// The seat is paid, so it is neither paid again nor given back.
    SeatPaid,
}

impl Decider for Show {
    type Command = Command;
    type Event = Event;
    type Reply = ();
    type Rejection = Rejection;

    fn decide(&self, command: &Command, context: &Context<'_>) -> Result<Vec<Event>, Rejection> {
        let (show_id, at) = (self.id, context.now());
        let event = match *command {
            Command::CreateShow {
                show_id,
                ref title,
                max_seats,
            } => self.create(show_id, title, max_seats, at)?,
            Command::ReserveSeat { seat } => match self.seat(seat)?.status {
                SeatStatus::Available => Event::SeatReserved { show_id, seat, at },
                SeatStatus::Reserved | SeatStatus::Paid => {
                    return Err(Rejection::SeatNotAvailable);
                }
            },
            Command::CancelReservation { seat } => match self.seat(seat)?.status {
                SeatStatus::Reserved => Event::SeatReservationCancelled { show_id, seat, at },
                SeatStatus::Paid => return Err(Rejection::SeatPaid),
                SeatStatus::Available => return Err(Rejection::SeatNotReserved),
            },
            Command::PaySeat { seat } => match self.seat(seat)?.status {
                SeatStatus::Reserved => Event::SeatPaid { show_id, seat, at },
                SeatStatus::Paid => return Err(Rejection::SeatPaid),
                SeatStatus::Available => return Err(Rejection::SeatNotReserved),
            },
            Command::GiveBackUnpaid { seat, reserved_at } => {
                let now = self.seat(seat)?;
                let is_it = now.reserved_at == Some(Timestamp(reserved_at));
                if now.status != SeatStatus::Reserved || !is_it {
                    return Ok(Vec::new());
                }
                Event::SeatReservationCancelled { show_id, seat, at }
            }
        };
        Ok(vec![event])
    }

    fn evolve(&mut self, event: &Event) {
        match event {
            Event::ShowCreated {
                show_id,
                title,
                seats,
                ..
            } => {
                *self = Show {
                    id: *show_id,
                    title: title.clone(),
                    seats: seats.clone(),
                }
            }
            Event::SeatReserved { seat, at, .. } => {
                self.set_status(*seat, SeatStatus::Reserved, Some(*at));
            }
            Event::SeatReservationCancelled { seat, .. } => {
                self.set_status(*seat, SeatStatus::Available, None);
            }
            Event::SeatPaid { seat, .. } => {
                let reserved_at = self.seat(*seat).ok().and_then(|seat| seat.reserved_at);
                self.set_status(*seat, SeatStatus::Paid, reserved_at);
            }
        }
    }

    fn reply(&self, _command: &Command) {}
}

impl Show {
    /// Returns true if the show was created.
    #[must_use]
    pub fn exists(&self) -> bool {
        !self.seats.is_empty()
    }

    fn create(
        &self,
        show_id: Uuid,
        title: &str,
        max_seats: u32,
        at: Timestamp,
    ) -> Result<Event, Rejection> {
        if self.exists() {
            return Err(Rejection::ShowAlreadyExists);
        }
        if title.trim().is_empty() {
            return Err(Rejection::TitleEmpty);
        }
        if title.chars().count() > TITLE_CHARS_MAX {
            return Err(Rejection::TitleTooLong);
        }
        let seats = match max_seats {
            0 => return Err(Rejection::TooFewSeats),
            1..=SEATS_MAX => (0..max_seats).map(|_| NEW_SEAT).collect(),
            _ => return Err(Rejection::TooManySeats),
        };
        Ok(Event::ShowCreated {
            show_id,
            title: title.into(),
            seats,
            at,
        })
    }

    fn seat(&self, number: u32) -> Result<Seat, Rejection> {
        if !self.exists() {
            return Err(Rejection::ShowNotExists);
        }
        let seat = self.seats.get(number as usize);
        seat.copied().ok_or(Rejection::SeatNotExists)
    }

    fn set_status(&mut self, number: u32, status: SeatStatus, reserved_at: Option<Timestamp>) {
        if let Some(seat) = self.seats.get_mut(number as usize) {
            (seat.status, seat.reserved_at) = (status, reserved_at);
        }
    }
}

impl Rejection {
    /// Returns the name of the reason that users of the application see.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Rejection::ShowAlreadyExists => "SHOW_ALREADY_EXISTS",
            Rejection::ShowNotExists => "SHOW_NOT_EXISTS",
            Rejection::TitleEmpty => "TITLE_EMPTY",
            Rejection::TitleTooLong => "TITLE_TOO_LONG",
            Rejection::TooFewSeats => "TOO_FEW_SEATS",
            Rejection::TooManySeats => "TOO_MANY_SEATS",
            Rejection::SeatNotExists => "SEAT_NOT_EXISTS",
            Rejection::SeatNotAvailable => "SEAT_NOT_AVAILABLE",
            Rejection::SeatNotReserved => "SEAT_NOT_RESERVED",
            Rejection::SeatPaid => "SEAT_PAID",
        }
    }
}
