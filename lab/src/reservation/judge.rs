//! What the answer of a cinema means.

use serde::Deserialize;

use crate::reservation::model::{Call, Fact, Outcome, SEATS_MAX, Shows, Verdict};

/// A show as `GET /shows/{id}` tells it.
#[derive(Debug, Deserialize)]
pub(crate) struct ShowDocument<'a> {
    /// Its seats.
    #[serde(borrow)]
    pub(crate) seats: Vec<SeatDocument<'a>>,
}

/// One of its seats.
#[derive(Debug, Deserialize)]
pub(crate) struct SeatDocument<'a> {
    /// What the server calls it.
    pub(crate) number: u16,
    /// `AVAILABLE` or `RESERVED`.
    pub(crate) status: &'a str,
}

/// Judges an answer to a call.
pub(crate) fn judge(call: Call, status: u16, body: &[u8], shows: &Shows) -> Verdict {
    let outcome = match status {
        200..=299 => Outcome::Accepted,
        429 | 503 => Outcome::Refused,
        400..=499 => Outcome::Rejected,
        _ => Outcome::Failed,
    };
    let fact = match (outcome, call) {
        (Outcome::Accepted, Call::Read) => match reserved_seats(body, shows) {
            Some(seats) => Fact::Seats(seats),
            // An answer that cannot be read is none.
            None => {
                return Verdict {
                    outcome: Outcome::Failed,
                    fact: Fact::None,
                    status,
                };
            }
        },
        (Outcome::Rejected, _) => reason(call, status, body),
        _ => Fact::None,
    };
    Verdict {
        outcome,
        fact,
        status,
    }
}

fn reason(call: Call, status: u16, body: &[u8]) -> Fact {
    let says = |word: &str| {
        body.windows(word.len())
            .any(|window| window == word.as_bytes())
    };
    match (call, status) {
        (Call::Create, 409) => Fact::ShowExists,
        (Call::Read, 404) => Fact::Absent,
        (Call::Reserve | Call::Cancel, 404) => Fact::Absent,
        (Call::Reserve, 400) if says("SEAT_NOT_AVAILABLE") => Fact::SeatReserved,
        (Call::Cancel, 400) if says("SEAT_NOT_RESERVED") => Fact::SeatFree,
        (Call::Reserve | Call::Cancel, 400)
            if says("SEAT_NOT_EXISTS") || says("SHOW_NOT_EXISTS") =>
        {
            Fact::Absent
        }
        _ => Fact::None,
    }
}

/// The reserved seats of a document, if it is one with all the seats of a show.
fn reserved_seats(body: &[u8], shows: &Shows) -> Option<u128> {
    let show: ShowDocument<'_> = serde_json::from_slice(body).ok()?;
    let (mut seen, mut reserved) = (0_u128, 0_u128);
    for seat in &show.seats {
        let number = seat.number;
        if number >= shows.seats.min(SEATS_MAX) {
            return None;
        }
        let bit = 1 << number;
        seen |= bit;
        match seat.status {
            "RESERVED" => reserved |= bit,
            "AVAILABLE" => {}
            _ => return None,
        }
    }
    let complete =
        seen.count_ones() == u32::from(shows.seats) && show.seats.len() == usize::from(shows.seats);
    complete.then_some(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWS: Shows = Shows { run: 7, seats: 3 };

    fn told(call: Call, status: u16, body: &str) -> (Outcome, Fact) {
        let verdict = judge(call, status, body.as_bytes(), &SHOWS);
        (verdict.outcome, verdict.fact)
    }

    #[test]
    fn answers_mean_what_the_table_of_the_interface_says() {
        use Call::{Cancel, Create, Read, Reserve};
        use Outcome::{Accepted, Failed, Refused, Rejected};
        for (call, status, body, outcome, fact) in [
            (Create, 201, "Show created", Accepted, Fact::None),
            (
                Create,
                409,
                "SHOW_ALREADY_EXISTS",
                Rejected,
                Fact::ShowExists,
            ),
            (Create, 400, "TOO_MANY_SEATS", Rejected, Fact::None),
            (Reserve, 202, "", Accepted, Fact::None),
            (
                Reserve,
                400,
                "SEAT_NOT_AVAILABLE",
                Rejected,
                Fact::SeatReserved,
            ),
            (
                Reserve,
                400,
                r#"{"code":"SHOW_NOT_EXISTS"}"#,
                Rejected,
                Fact::Absent,
            ),
            (Cancel, 400, "SEAT_NOT_RESERVED", Rejected, Fact::SeatFree),
            (Cancel, 400, "SEAT_NOT_EXISTS", Rejected, Fact::Absent),
            (Read, 404, "", Rejected, Fact::Absent),
            (Reserve, 503, "overloaded", Refused, Fact::None),
            (Reserve, 500, "", Failed, Fact::None),
            (Reserve, 504, "", Failed, Fact::None),
        ] {
            assert_eq!(
                told(call, status, body),
                (outcome, fact),
                "{call:?} {status} {body}"
            );
        }
    }

    #[test]
    fn seats_are_read_in_any_order() {
        let document = r#"{"id":"x","title":"\"y\"","seats":[
            {"price":"1","status":"RESERVED","number":2},
            {"number":0,"status":"AVAILABLE","price":100.0},{"number":1,"status":"RESERVED","price":{"amount":1}}]}"#;
        let wanted = (Outcome::Accepted, Fact::Seats(0b110));
        assert_eq!(told(Call::Read, 200, document), wanted);
        for bad in [
            "",
            "[]",
            r#"{"seats":[]}"#,
            r#"{"seats":[{"number":1,"status":"AVAILABLE"}]}"#,
            r#"{"seats":[{"number":0,"status":"A"},{"number":1,"status":"A"},{"number":2,"status":"A"}]}"#,
            r#"{"seats":[{"number":1,"status":"RESERVED"},{"number":2,"status":"RESERVED"},{"number":3,"status":"RESERVED"}]}"#,
            r#"{"seats":[{"number":200,"status":"RESERVED"}]}"#,
        ] {
            assert_eq!(
                told(Call::Read, 200, bad),
                (Outcome::Failed, Fact::None),
                "{bad}"
            );
        }
    }
}
