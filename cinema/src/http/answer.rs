//! Answers and their bytes.
//!
//! Why by hand: an answer is a few known bytes; a framework's ways would cost more than all the rest of it.

use bytes::Bytes;
use gesta::entity::Error;
use http_body_util::Full;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};

use crate::domain::{Price, Rejection, SeatStatus, Show};
use crate::http::body::BODY_BYTES_MAX;
use crate::read_model::{self, AvailableSeats};

pub(super) type Answer = Response<Full<Bytes>>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROMETHEUS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// For those who come without knowing.
const CALLS: &str = "POST /shows, PATCH /shows/{showId}/seats/{seatNum}, GET /shows/{showId}, \
    GET /available-seats, GET /health, GET /metrics";

/// A line of text.
pub(super) fn text(status: StatusCode, text: &'static str) -> Answer {
    answer(status, TEXT, Bytes::from_static(text.as_bytes()))
}

/// The metrics.
pub(super) fn metrics(text: String) -> Answer {
    answer(StatusCode::OK, PROMETHEUS, text.into())
}

/// A show.
pub(super) fn show(show: &Show) -> Answer {
    let mut json = Vec::with_capacity(80 + show.title.len() + 55 * show.seats.len());
    json.extend_from_slice(b"{\"id\":\"");
    put(&mut json, show.id.hyphenated());
    json.extend_from_slice(b"\",\"title\":");
    put_text(&mut json, &show.title);
    json.extend_from_slice(b",\"seats\":[");
    for (number, seat) in (0_u32..).zip(&show.seats) {
        if number > 0 {
            json.push(b',');
        }
        json.extend_from_slice(b"{\"number\":");
        put_number(&mut json, number);
        json.extend_from_slice(match seat.status {
            SeatStatus::Available => b",\"status\":\"AVAILABLE\",\"price\":".as_slice(),
            SeatStatus::Reserved => b",\"status\":\"RESERVED\",\"price\":".as_slice(),
        });
        put_price(&mut json, seat.price);
        json.push(b'}');
    }
    json.extend_from_slice(b"]}");
    answer(StatusCode::OK, JSON, json.into())
}

/// Rows of the read model.
pub(super) fn available_seats(rows: &[AvailableSeats]) -> Answer {
    let mut json = Vec::with_capacity(2 + 72 * rows.len());
    json.push(b'[');
    for (index, row) in rows.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        let (id, available) = (row.show_id.hyphenated(), row.available);
        put(
            &mut json,
            format_args!("{{\"showId\":\"{id}\",\"availableSeats\":{available}}}"),
        );
    }
    json.push(b']');
    answer(StatusCode::OK, JSON, json.into())
}

fn answer(status: StatusCode, media_type: HeaderValue, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, media_type);
    answer
}

fn put(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    use std::io::Write;
    // Writing to memory does not fail.
    let _ = write!(out, "{value}");
}

/// A number, without the general way of formatting: a show has a hundred seats.
fn put_number(out: &mut Vec<u8>, mut number: u32) {
    let from = out.len();
    loop {
        out.push(digit(number));
        number /= 10;
        if number == 0 {
            break;
        }
    }
    if let Some(digits) = out.get_mut(from..) {
        digits.reverse();
    }
}

/// As `Price` shows itself.
fn put_price(out: &mut Vec<u8>, price: Price) {
    put_number(out, price.cents / 100);
    out.push(b'.');
    out.push(digit(price.cents / 10));
    out.push(digit(price.cents));
}

/// The last digit.
fn digit(number: u32) -> u8 {
    b"0123456789"
        .get(usize::try_from(number % 10).unwrap_or(0))
        .copied()
        .unwrap_or(b'0')
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Nor does this: a text is always JSON.
    let _ = serde_json::to_writer(out, text);
}

/// Why a request is not carried out.
pub(super) struct Refusal {
    status: StatusCode,
    text: Bytes,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<Bytes>) -> Self {
        Self {
            status,
            text: text.into(),
            header: None,
        }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, HeaderValue::from_static(value)));
        self
    }

    fn bad(text: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    fn retry_later(name: &str, why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{name}: {why}")).with(RETRY_AFTER, "1")
    }

    pub(super) fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::retry_later("UNAVAILABLE", why)
    }

    pub(super) fn show_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, Rejection::ShowNotExists.reason())
    }

    pub(super) fn not_found(parts: &Parts) -> Self {
        let path: String = parts.uri.path().chars().take(100).collect();
        let text = format!("NOT_FOUND: there is nothing at {path}; the calls are {CALLS}");
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        let text = format!("METHOD_NOT_ALLOWED: this path has only {allow}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, text).with(ALLOW, allow)
    }

    pub(super) fn body(error: &serde_json::Error) -> Self {
        let text = format!("INVALID_BODY: {error}");
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn not_an_object(example: &str) -> Self {
        let text = format!("INVALID_BODY: must be a JSON object such as {example}");
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(super) fn too_large() -> Self {
        let text = format!("BODY_TOO_LARGE: at most {BODY_BYTES_MAX} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, text).with(CONNECTION, "close")
    }

    pub(super) fn timeout() -> Self {
        let text = "TIMEOUT: the body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, text).with(CONNECTION, "close")
    }

    pub(super) fn broken_off(error: &hyper::Error) -> Self {
        let text = format!("INVALID_BODY: {error}");
        Self::new(StatusCode::BAD_REQUEST, text).with(CONNECTION, "close")
    }

    pub(super) fn show_id() -> Self {
        Self::bad("INVALID_SHOW_ID: must be a UUID with hyphens")
    }

    pub(super) fn seat_number() -> Self {
        Self::bad("INVALID_SEAT_NUMBER: must be a whole number")
    }

    pub(super) fn idempotency_key() -> Self {
        Self::bad("INVALID_IDEMPOTENCY_KEY: must be 1 to 255 visible ASCII characters")
    }

    pub(super) fn parameter(rule: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            format!("INVALID_PARAMETER: {rule}"),
        )
    }

    pub(super) fn into_answer(self) -> Answer {
        let mut answer = answer(self.status, TEXT, self.text);
        if let Some((name, value)) = self.header {
            answer.headers_mut().insert(name, value);
        }
        answer
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        let status = match rejection {
            Rejection::ShowAlreadyExists => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, rejection.reason())
    }
}

impl From<std::convert::Infallible> for Refusal {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl<R: Into<Refusal>> From<Error<R>> for Refusal {
    fn from(error: Error<R>) -> Self {
        match error {
            Error::Rejected(rejection) => rejection.into(),
            Error::KeyReused(key) => {
                let text = format!("IDEMPOTENCY_KEY_REUSED: {key:?} was used for another request");
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, text)
            }
            Error::Overloaded(why) => Self::retry_later("OVERLOADED", why),
            Error::Unavailable(error) => Self::unavailable(error),
            Error::OutcomeUnknown(error) => {
                let text = format!(
                    "OUTCOME_UNKNOWN: {error}; look, or send it again with the same idempotency-key"
                );
                Self::new(StatusCode::GATEWAY_TIMEOUT, text)
            }
            Error::Failed(error) => {
                tracing::error!(%error, "a show is out of order");
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("FAILED: {error}"),
                )
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "FAILED"),
        }
    }
}

impl From<read_model::Error> for Refusal {
    fn from(error: read_model::Error) -> Self {
        Self::unavailable(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_prices_are_decimal() {
        for number in [0, 7, 10, 99, 100, 12_345, u32::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(out, number.to_string().as_bytes());
            let (mut out, price) = (Vec::new(), Price { cents: number });
            put_price(&mut out, price);
            assert_eq!(out, price.to_string().as_bytes());
        }
    }

    #[test]
    fn each_failure_has_its_status() {
        let unavailable = || gesta::Error::unavailable("away");
        let refusals: [(Error<Rejection>, u16, &str); 6] = [
            (
                Error::KeyReused("a".into()),
                422,
                "IDEMPOTENCY_KEY_REUSED: \"a\"",
            ),
            (
                Error::Rejected(Rejection::TooManySeats),
                400,
                "TOO_MANY_SEATS",
            ),
            (
                Error::Overloaded("9 wait".into()),
                503,
                "OVERLOADED: 9 wait",
            ),
            (
                Error::Unavailable(unavailable()),
                503,
                "UNAVAILABLE: unavailable: away",
            ),
            (
                Error::OutcomeUnknown(unavailable()),
                504,
                "OUTCOME_UNKNOWN: ",
            ),
            (Error::Failed(unavailable()), 500, "FAILED: "),
        ];
        for (error, status, text) in refusals {
            let refusal = Refusal::from(error);
            assert!(
                refusal.text.starts_with(text.as_bytes()),
                "{:?}",
                refusal.text
            );
            let answer = refusal.into_answer();
            assert_eq!(answer.status().as_u16(), status);
            let retry = answer.headers().contains_key(RETRY_AFTER);
            assert_eq!(retry, status == 503);
        }
    }
}
