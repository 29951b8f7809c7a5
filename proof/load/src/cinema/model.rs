//! What is asked of a cinema, what it may answer, and what an answer means.

use bytes::Bytes;
use hyper::Method;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::random::Random;

/// Most seats of a show, so that a read fits a word of bits.
pub const SEATS_MAX: u16 = 100;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// `POST /shows`.
    Create,
    /// `PATCH /shows/{id}/seats/{n}` with `RESERVE`.
    Reserve,
    /// `PATCH /shows/{id}/seats/{n}` with `CANCEL_RESERVATION`.
    Cancel,
    /// `GET /shows/{id}`.
    Read,
}

impl Call {
    /// All of them, in the order of their discriminants, with their names.
    pub const ALL: [(Call, &str); 4] = [
        (Call::Create, "create"),
        (Call::Reserve, "reserve"),
        (Call::Cancel, "cancel"),
        (Call::Read, "read"),
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// One request: the show by its number in the run, the seat by its number in the show, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// What is asked.
    pub call: Call,
    /// The show.
    pub show: u32,
    /// 0 where there is none.
    pub seat: u16,
}

impl Op {
    /// A request about a whole show.
    pub fn of_show(call: Call, show: u32) -> Self {
        let seat = 0;
        Self { call, show, seat }
    }

    /// Method, path and body.
    pub fn request(self, shows: &Shows) -> (Method, String, Bytes) {
        let (id, seat) = (shows.id(self.show), self.seat);
        let change = |body: &'static str| {
            let path = format!("/shows/{id}/seats/{seat}");
            (Method::PATCH, path, Bytes::from_static(body.as_bytes()))
        };
        match self.call {
            Call::Create => {
                let (show, seats) = (self.show, shows.seats);
                let body =
                    format!(r#"{{"showId":"{id}","title":"Show {show}","maxSeats":{seats}}}"#);
                (Method::POST, "/shows".into(), body.into())
            }
            Call::Reserve => change(r#"{"action":"RESERVE"}"#),
            Call::Cancel => change(r#"{"action":"CANCEL_RESERVATION"}"#),
            Call::Read => (Method::GET, format!("/shows/{id}"), Bytes::new()),
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 2xx.
    Accepted,
    /// 503 (or 429): overloaded, nothing was done.
    Refused,
    /// Another 4xx: not possible.
    Rejected,
    /// No answer, or one that leaves open what was done.
    Failed,
}

impl Outcome {
    /// All of them, in the order of their discriminants, with their names.
    pub const ALL: [(Outcome, &str); 4] = [
        (Outcome::Accepted, "accepted"),
        (Outcome::Refused, "refused"),
        (Outcome::Rejected, "rejected"),
        (Outcome::Failed, "failed"),
    ];
}

/// What an answer says about the show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// Nothing more than its outcome.
    None,
    /// The seat is reserved.
    SeatReserved,
    /// The seat is free.
    SeatFree,
    /// The show is there.
    ShowExists,
    /// The show or the seat does not exist.
    Absent,
    /// The seats that are reserved, one bit each.
    Seats(u128),
}

/// An answer, judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What became of it.
    pub outcome: Outcome,
    /// What the answer says beside that.
    pub fact: Fact,
    /// 0 if no answer came.
    pub status: u16,
}

impl Answer {
    /// No answer came.
    pub const NONE: Answer = Answer {
        outcome: Outcome::Failed,
        fact: Fact::None,
        status: 0,
    };

    /// Judges an answer to a call.
    pub fn of(call: Call, status: u16, body: &[u8], shows: &Shows) -> Self {
        let says = |word: &str| body.windows(word.len()).any(|part| part == word.as_bytes());
        let (outcome, fact) = match (status, call) {
            (200..=299, Call::Read) => match reserved_seats(body, shows) {
                Some(seats) => (Outcome::Accepted, Fact::Seats(seats)),
                // An answer that cannot be read is none.
                None => (Outcome::Failed, Fact::None),
            },
            (200..=299, _) => (Outcome::Accepted, Fact::None),
            (429 | 503, _) => (Outcome::Refused, Fact::None),
            (409, Call::Create) => (Outcome::Rejected, Fact::ShowExists),
            (404, Call::Read | Call::Reserve | Call::Cancel) => (Outcome::Rejected, Fact::Absent),
            (400, Call::Reserve) if says("SEAT_NOT_AVAILABLE") => {
                (Outcome::Rejected, Fact::SeatReserved)
            }
            (400, Call::Cancel) if says("SEAT_NOT_RESERVED") => (Outcome::Rejected, Fact::SeatFree),
            (400, Call::Reserve | Call::Cancel)
                if says("SEAT_NOT_EXISTS") || says("SHOW_NOT_EXISTS") =>
            {
                (Outcome::Rejected, Fact::Absent)
            }
            (400..=499, _) => (Outcome::Rejected, Fact::None),
            _ => (Outcome::Failed, Fact::None),
        };
        Self {
            outcome,
            fact,
            status,
        }
    }
}

/// A show as `GET /shows/{id}` tells it.
#[derive(Debug, Deserialize)]
struct ShowDocument {
    seats: Vec<SeatDocument>,
}

#[derive(Debug, Deserialize)]
struct SeatDocument {
    number: u16,
    status: SeatStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum SeatStatus {
    Available,
    Reserved,
    Paid,
}

/// The seats of a document that somebody has, reserved or paid, if it is one with all the seats of a show.
fn reserved_seats(body: &[u8], shows: &Shows) -> Option<u128> {
    let show: ShowDocument = serde_json::from_slice(body).ok()?;
    let (mut seen, mut reserved) = (0_u128, 0_u128);
    for seat in show.seats.iter() {
        if seat.number >= shows.seats.min(SEATS_MAX) || seen >> seat.number & 1 == 1 {
            return None;
        }
        seen |= 1 << seat.number;
        reserved |= u128::from(seat.status != SeatStatus::Available) << seat.number;
    }
    (show.seats.len() == usize::from(shows.seats)).then_some(reserved)
}

/// The shows of one run: their ids, and how many seats they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shows {
    /// Random number of the run.
    pub run: u64,
    /// Seats per show, numbered from 0 as in the published load.
    pub seats: u16,
}

impl Shows {
    /// The id of a show: made again whenever it is needed, so that millions cost no memory.
    pub fn id(&self, show: u32) -> Uuid {
        Random::fork(self.run, u64::from(show)).uuid()
    }

    /// One number for a seat of a show.
    pub fn place(&self, show: u32, seat: u16) -> u32 {
        show * u32::from(self.seats) + u32::from(seat)
    }

    /// Show and seat of that number.
    pub fn of_place(&self, place: u32) -> (u32, u16) {
        let seats = u32::from(self.seats);
        let seat = u16::try_from(place % seats).expect("a seat");
        (place / seats, seat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWS: Shows = Shows { run: 7, seats: 3 };

    #[test]
    fn answers_mean_what_the_table_of_the_interface_says() {
        use Call::{Cancel, Create, Read, Reserve};
        use Outcome::{Accepted, Failed, Refused, Rejected};
        let document = r#"{"id":"x","title":"\"y\"","seats":[{"price":"1","status":"RESERVED","number":2},
            {"number":0,"status":"AVAILABLE","price":100.0},{"number":1,"status":"RESERVED"}]}"#;
        let twice = r#"{"seats":[{"number":1,"status":"RESERVED"},{"number":1,"status":"RESERVED"},{"number":2,"status":"RESERVED"}]}"#;
        let one = r#"{"seats":[{"number":1,"status":"AVAILABLE"}]}"#;
        let beyond = r#"{"seats":[{"number":200,"status":"RESERVED"}]}"#;
        let paid = r#"{"seats":[{"number":0,"status":"PAID"},{"number":1,"status":"AVAILABLE"},{"number":2,"status":"RESERVED"}]}"#;
        let no_show = r#"{"code":"SHOW_NOT_EXISTS"}"#;
        let exists = Fact::ShowExists;
        for (call, status, body, outcome, fact) in [
            (Create, 201, "Show created", Accepted, Fact::None),
            (Create, 409, "SHOW_ALREADY_EXISTS", Rejected, exists),
            (Create, 400, "TOO_MANY_SEATS", Rejected, Fact::None),
            (Reserve, 202, "", Accepted, Fact::None),
            (
                Reserve,
                400,
                "SEAT_NOT_AVAILABLE",
                Rejected,
                Fact::SeatReserved,
            ),
            (Reserve, 400, no_show, Rejected, Fact::Absent),
            (Cancel, 400, "SEAT_NOT_RESERVED", Rejected, Fact::SeatFree),
            (Cancel, 400, "SEAT_NOT_EXISTS", Rejected, Fact::Absent),
            (Reserve, 503, "overloaded", Refused, Fact::None),
            (Reserve, 500, "", Failed, Fact::None),
            (Reserve, 504, "", Failed, Fact::None),
            (Read, 404, "", Rejected, Fact::Absent),
            (Read, 200, document, Accepted, Fact::Seats(0b110)),
            (Read, 200, paid, Accepted, Fact::Seats(0b101)),
            (Read, 200, "", Failed, Fact::None),
            (Read, 200, one, Failed, Fact::None),
            (Read, 200, twice, Failed, Fact::None),
            (Read, 200, beyond, Failed, Fact::None),
        ] {
            let answer = Answer::of(call, status, body.as_bytes(), &SHOWS);
            let found = (answer.outcome, answer.fact);
            assert_eq!(found, (outcome, fact), "{call:?} {status} {body}");
        }
    }
}
