//! Refusals of requests as answers: a status, and a line of text that begins with the name of the reason.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Display;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use gesta::ErrorKind;
use gesta::entity::Error;

use crate::domain::Rejection;

/// The calls of the API, for callers who do not know them.
const CALLS: &str = "POST /shows, PATCH /shows/{showId}/seats/{seatNum}, GET /shows/{showId}, \
    GET /available-seats, GET /health, GET /metrics";

/// The answer to a request that is not carried out.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    text: Cow<'static, str>,
    header: Option<(HeaderName, &'static str)>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            text: text.into(),
            header: None,
        }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }

    pub(super) fn bad(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// Makes this answer close the connection, which then carries no further request.
    pub(super) fn and_close(self) -> Self {
        self.with(CONNECTION, "close")
    }

    fn retry_later(name: &str, why: impl Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{name}: {why}")).with(RETRY_AFTER, "1")
    }

    pub(super) fn unavailable(why: impl Display) -> Self {
        Self::retry_later("UNAVAILABLE", why)
    }

    pub(super) fn show_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, Rejection::ShowNotExists.reason())
    }

    pub(super) fn not_found(uri: &Uri) -> Self {
        let path: String = uri.path().chars().take(100).collect();
        let text = format!("NOT_FOUND: there is nothing at {path}; the calls are {CALLS}");
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub(super) fn method_not_allowed(allow: &'static str) -> Self {
        let text = format!("METHOD_NOT_ALLOWED: this path has only {allow}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, text).with(ALLOW, allow)
    }

    pub(super) fn body(rule: impl Display) -> Self {
        Self::bad(format!("INVALID_BODY: {rule}"))
    }

    pub(super) fn parameter(rule: impl Display) -> Self {
        Self::bad(format!("INVALID_PARAMETER: {rule}"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text).into_response();
        if let Some((name, value)) = self.header {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<PathRejection> for Refusal {
    fn from(rejection: PathRejection) -> Self {
        Self::parameter(rejection.body_text())
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::parameter(rejection.body_text())
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

impl From<Infallible> for Refusal {
    fn from(never: Infallible) -> Self {
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
            Error::Failed(error) if matches!(error.kind(), ErrorKind::StreamTombstoned(_)) => {
                Self::new(
                    StatusCode::GONE,
                    "SHOW_CLOSED: the show was closed for ever",
                )
            }
            Error::Failed(error) => {
                tracing::error!(%error, "a show is out of order");
                let text = format!("FAILED: {error}");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "FAILED"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_status() {
        let unavailable = || gesta::Error::unavailable("away");
        let closed = ErrorKind::StreamTombstoned(gesta::StreamId::new("show-1").expect("a name"));
        let refusals: [(Error<Rejection>, u16, &str); 7] = [
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
            (Error::Failed(closed.into()), 410, "SHOW_CLOSED: "),
            (Error::Failed(unavailable()), 500, "FAILED: "),
        ];
        for (error, status, text) in refusals {
            let refusal = Refusal::from(error);
            assert!(refusal.text.starts_with(text), "{:?}", refusal.text);
            let answer = refusal.into_response();
            assert_eq!(answer.status().as_u16(), status);
            let retry = answer.headers().contains_key(RETRY_AFTER);
            assert_eq!(retry, status == 503);
        }
    }
}
