//! Reads requests: axum extracts their parts, and what is wrong is refused in the words of this API.

use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::header::EXPECT;
use axum::http::request::Parts;
use futures::StreamExt;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::http::refusal::Refusal;

/// Largest body, in bytes. The calls of this API have a few hundred.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of a body that is too large that are still taken, so that its sender sees the answer.
const DISCARD_BYTES_MAX: usize = 1024 * 1024;
/// How long a body may take to arrive.
const BODY_READ_MAX: Duration = Duration::from_secs(10);
/// Longest `idempotency-key`, in characters.
const KEY_CHARS_MAX: usize = 255;

/// Parameters of the path.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(Refusal))]
pub(super) struct Path<T>(pub(super) T);

/// Parameters in the query string.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(Refusal))]
pub(super) struct Query<T>(pub(super) T);

/// The value of the header `idempotency-key`.
pub(super) struct IdempotencyKey(pub(super) Option<String>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Some(value) = parts.headers.get("idempotency-key") else {
            return Ok(Self(None));
        };
        let key = value.to_str().ok();
        let key = key.filter(|key| (1..=KEY_CHARS_MAX).contains(&key.len()));
        let key = key.ok_or_else(|| {
            Refusal::bad("INVALID_IDEMPOTENCY_KEY: must be 1 to 255 visible ASCII characters")
        })?;
        Ok(Self(Some(key.to_owned())))
    }
}

/// What the body of a request asks for.
pub(super) trait RequestDocument: DeserializeOwned {
    /// A valid body, which is shown to callers who send another.
    const EXAMPLE: &str;
}

/// The JSON object in the body of a request.
pub(super) struct Body<T>(pub(super) T);

impl<S: Sync, T: RequestDocument> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let read = tokio::time::timeout(BODY_READ_MAX, read(request)).await;
        let body = read.unwrap_or_else(|_| {
            let text = "TIMEOUT: the body did not arrive in time";
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, text).and_close())
        })?;
        // serde would take a list of the values too.
        if body.trim_ascii_start().first() != Some(&b'{') {
            let example = T::EXAMPLE;
            return Err(Refusal::body(format!(
                "must be a JSON object such as {example}"
            )));
        }
        serde_json::from_slice(&body)
            .map(Self)
            .map_err(Refusal::body)
    }
}

/// Reads the whole body. Of a body that is too large it reads so much that its sender sees the answer.
async fn read(request: Request) -> Result<Vec<u8>, Refusal> {
    let waits_for_leave = request.headers().contains_key(EXPECT);
    let body = request.into_body();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut taken, mut gathered) = (0, Vec::new());
    let mut parts = body.into_data_stream();
    while taken <= DISCARD_BYTES_MAX && !(waits_for_leave && announced > BODY_BYTES_MAX) {
        let Some(part) = parts.next().await else {
            break;
        };
        let part = part.map_err(|error| Refusal::body(error).and_close())?;
        taken += part.len();
        if taken <= BODY_BYTES_MAX {
            gathered.extend_from_slice(&part);
        }
    }
    if taken.max(announced) > BODY_BYTES_MAX {
        let text = format!("BODY_TOO_LARGE: at most {BODY_BYTES_MAX} bytes");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text).and_close());
    }
    Ok(gathered)
}

/// Reads a UUID with hyphens, which has 36 characters.
pub(super) fn show_id(text: &str) -> Result<Uuid, Refusal> {
    let id = (text.len() == 36).then(|| Uuid::try_parse(text).ok());
    id.flatten()
        .ok_or_else(|| Refusal::bad("INVALID_SHOW_ID: must be a UUID with hyphens"))
}

/// Reads a whole number. A number that is too large for any show stands for a seat that does not exist.
pub(super) fn seat_number(text: &str) -> Result<u32, Refusal> {
    if text.is_empty() || text.len() > 20 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::bad("INVALID_SEAT_NUMBER: must be a whole number"));
    }
    Ok(text.parse().unwrap_or(u32::MAX))
}
