//! The rules of shows, by example: given what has happened, when something is asked, then.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use gesta::Timestamp;
use gesta::entity::Scenario;
use gesta_cinema::domain::*;
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(7);
const AT: Timestamp = Timestamp(1_790_000_000_000_000);

fn create(title: &str, max_seats: u32) -> Command {
    Command::CreateShow {
        show_id: ID,
        title: title.into(),
        max_seats,
    }
}

fn created(seats: usize) -> Event {
    let seat = Seat {
        status: SeatStatus::Available,
        price: INITIAL_PRICE,
        reserved_at: None,
    };
    Event::ShowCreated {
        show_id: ID,
        title: "Ran".into(),
        seats: vec![seat; seats],
        at: AT,
    }
}

fn reserved(seat: u32) -> Event {
    Event::SeatReserved {
        show_id: ID,
        seat,
        at: AT,
    }
}

fn cancelled(seat: u32) -> Event {
    Event::SeatReservationCancelled {
        show_id: ID,
        seat,
        at: AT,
    }
}

fn show() -> Scenario<Show> {
    Scenario::of(ID.to_string()).at(AT)
}

#[test]
fn a_show_is_created_once() {
    show()
        .when(create("Ran", 3))
        .then([created(3)])
        .then_state(|show| assert!(show.exists() && show.seats.len() == 3 && &*show.title == "Ran"))
        .when(create("Ran", 3))
        .then_rejected(Rejection::ShowAlreadyExists);
}

#[test]
fn a_show_has_one_to_a_hundred_seats() {
    let seats = usize::try_from(SEATS_MAX).expect("small");
    show().when(create("Ran", 1)).then([created(1)]);
    show().when(create("Ran", SEATS_MAX)).then([created(seats)]);
    show()
        .when(create("Ran", 0))
        .then_rejected(Rejection::TooFewSeats);
    for seats in [SEATS_MAX + 1, u32::MAX] {
        show()
            .when(create("Ran", seats))
            .then_rejected(Rejection::TooManySeats);
    }
}

#[test]
fn a_show_has_a_title() {
    for empty in ["", "  ", "\t\n"] {
        show()
            .when(create(empty, 1))
            .then_rejected(Rejection::TitleEmpty);
    }
    let longest = "ä".repeat(TITLE_CHARS_MAX);
    show()
        .when(create(&longest, 1))
        .then_state(|show| assert!(show.exists()));
    show()
        .when(create(&format!("{longest}x"), 1))
        .then_rejected(Rejection::TitleTooLong);
}

#[test]
fn a_seat_is_reserved_once_until_it_is_given_back() {
    show()
        .given([created(2)])
        .when(Command::ReserveSeat { seat: 1 })
        .then([reserved(1)])
        .when(Command::ReserveSeat { seat: 1 })
        .then_rejected(Rejection::SeatNotAvailable)
        .when(Command::CancelReservation { seat: 1 })
        .then([cancelled(1)])
        .when(Command::CancelReservation { seat: 1 })
        .then_rejected(Rejection::SeatNotReserved)
        .when(Command::ReserveSeat { seat: 1 })
        .then([reserved(1)])
        .then_state(|show| {
            let status: Vec<_> = show.seats.iter().map(|seat| seat.status).collect();
            assert_eq!(status, [SeatStatus::Available, SeatStatus::Reserved]);
        });
}

fn paid(seat: u32) -> Event {
    Event::SeatPaid {
        show_id: ID,
        seat,
        at: AT,
    }
}

#[test]
fn what_is_paid_is_kept() {
    show()
        .given([created(2)])
        .when(Command::PaySeat { seat: 1 })
        .then_rejected(Rejection::SeatNotReserved)
        .when(Command::ReserveSeat { seat: 1 })
        .then([reserved(1)])
        .when(Command::PaySeat { seat: 1 })
        .then([paid(1)])
        .when(Command::PaySeat { seat: 1 })
        .then_rejected(Rejection::SeatPaid)
        .when(Command::CancelReservation { seat: 1 })
        .then_rejected(Rejection::SeatPaid)
        .when(Command::ReserveSeat { seat: 1 })
        .then_rejected(Rejection::SeatNotAvailable);
}

/// Goal: what comes too late for a reservation does nothing to the next one of the seat, nor to one that is paid.
#[test]
fn only_the_reservation_that_is_meant_is_given_back() {
    let give_back = |seat, at: Timestamp| Command::GiveBackUnpaid {
        seat,
        reserved_at: at.0,
    };
    show()
        .given([created(3), reserved(0), reserved(1), paid(1)])
        .when(give_back(0, Timestamp(AT.0 - 1)))
        .then([])
        .when(give_back(1, AT))
        .then([])
        .when(give_back(2, AT))
        .then([])
        .when(give_back(0, AT))
        .then([cancelled(0)])
        .when(give_back(0, AT))
        .then([])
        .when(give_back(3, AT))
        .then_rejected(Rejection::SeatNotExists);
}

/// The published load draws its seats from 0 to below `maxSeats`. Seats numbered from 1 refused one of fifty requests.
#[test]
fn seats_are_numbered_from_0_to_below_their_count() {
    for seat in 0..3 {
        show()
            .given([created(3)])
            .when(Command::ReserveSeat { seat })
            .then([reserved(seat)])
            .when(Command::CancelReservation { seat })
            .then([cancelled(seat)]);
    }
}

#[test]
fn only_seats_of_a_show_can_be_reserved() {
    for seat in [2, 3, u32::MAX] {
        show()
            .given([created(2)])
            .when(Command::ReserveSeat { seat })
            .then_rejected(Rejection::SeatNotExists)
            .when(Command::CancelReservation { seat })
            .then_rejected(Rejection::SeatNotExists);
    }
    show()
        .when(Command::ReserveSeat { seat: 1 })
        .then_rejected(Rejection::ShowNotExists)
        .when(Command::CancelReservation { seat: 1 })
        .then_rejected(Rejection::ShowNotExists);
}

#[test]
fn a_price_has_two_decimals() {
    assert_eq!(INITIAL_PRICE.to_string(), "100.00");
    assert_eq!(Price { cents: 5 }.to_string(), "0.05");
}
