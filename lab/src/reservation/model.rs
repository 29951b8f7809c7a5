//! What is asked of a cinema and what it may answer.

use serde::Serialize;
use uuid::Uuid;

use crate::random::Random;

/// Most seats of a show, so that a read fits a word of bits.
pub(crate) const SEATS_MAX: u16 = 100;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
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
    /// All of them, in the order of their discriminants.
    pub(crate) const ALL: [Call; 4] = [Call::Create, Call::Reserve, Call::Cancel, Call::Read];

    /// For tables and lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Call::Create => "create",
            Call::Reserve => "reserve",
            Call::Cancel => "cancel",
            Call::Read => "read",
        }
    }
}

/// One request: the show by its number in the run, the seat by its number in the show. The first seat has number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    /// What.
    pub(crate) call: Call,
    /// Which show.
    pub(crate) show: u32,
    /// Which seat; 0 where there is none.
    pub(crate) seat: u16,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
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
    /// All of them, in the order of their discriminants.
    pub(crate) const ALL: [Outcome; 4] = [
        Outcome::Accepted,
        Outcome::Refused,
        Outcome::Rejected,
        Outcome::Failed,
    ];

    /// For tables and lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Accepted => "accepted",
            Outcome::Refused => "refused",
            Outcome::Rejected => "rejected",
            Outcome::Failed => "failed",
        }
    }
}

/// What an answer says about the show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fact {
    /// Nothing more than its outcome.
    None,
    /// The seat is reserved.
    SeatReserved,
    /// The seat is free.
    SeatFree,
    /// The show exists already.
    ShowExists,
    /// The show or the seat does not exist.
    Absent,
    /// The seats that are reserved, one bit each.
    Seats(u128),
}

/// An answer, judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// What it says.
    pub(crate) fact: Fact,
    /// Status of the answer; 0 if there was none.
    pub(crate) status: u16,
}

impl Verdict {
    /// No answer came.
    pub(crate) const NO_ANSWER: Verdict = Verdict {
        outcome: Outcome::Failed,
        fact: Fact::None,
        status: 0,
    };
}

/// The shows of one run: their ids, and how many seats they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shows {
    /// Random number of the run.
    pub(crate) run: u64,
    /// Seats per show, numbered from 0 as in the published load.
    pub(crate) seats: u16,
}

impl Shows {
    /// The id of a show: made again whenever it is needed, so that millions cost no memory.
    pub(crate) fn id(&self, show: u32) -> Uuid {
        Random::fork(self.run, u64::from(show)).uuid()
    }

    /// One number for a seat of a show.
    pub(crate) fn place(&self, show: u32, seat: u16) -> u32 {
        show * u32::from(self.seats) + u32::from(seat)
    }

    /// Show and seat of that number.
    pub(crate) fn of_place(&self, place: u32) -> (u32, u16) {
        let seats = u32::from(self.seats);
        let seat = u16::try_from(place % seats).expect("a seat");
        (place / seats, seat)
    }
}
