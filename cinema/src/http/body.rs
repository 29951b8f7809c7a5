//! The body of a request, within bounds of size and time, and what it says.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::EXPECT;
use hyper::http::request::Parts;
use serde::{Deserialize, Deserializer};

use crate::http::answer::Refusal;

/// Largest body, in bytes. The calls of this API have a few hundred.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long a body may take to arrive.
const BODY_READ_MAX: Duration = Duration::from_secs(10);
/// How much of a body that is too large is still taken, so that its sender sees the answer.
const DISCARD_BYTES_MAX: usize = 1024 * 1024;
const DISCARD_MAX: Duration = Duration::from_millis(500);

/// Reads the whole body.
pub(super) async fn read(parts: &Parts, mut body: Incoming) -> Result<Bytes, Refusal> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > BODY_BYTES_MAX {
        // A client that waits for leave to send its body is spared sending it.
        if !parts.headers.contains_key(EXPECT) {
            discard(&mut body).await;
        }
        return Err(Refusal::too_large());
    }
    // The timer starts only if the body is not there yet.
    let read = tokio::time::timeout(BODY_READ_MAX, collect(&mut body)).await;
    let read = read.unwrap_or_else(|_| Err(Refusal::timeout()))?;
    if read.is_none() {
        discard(&mut body).await;
    }
    read.ok_or_else(Refusal::too_large)
}

/// The object in a body, which should look like `example`.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], example: &str) -> Result<T, Refusal> {
    // Left alone, serde takes a list of the values too, and names Rust's types when it refuses.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refusal::not_an_object(example));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::body(&error))
}

/// A number, refused in the words of people.
pub(super) fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct WholeNumber;
    impl serde::de::Visitor<'_> for WholeNumber {
        type Value = u64;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number, not below 0")
        }
        fn visit_u64<E>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }
    }
    deserializer.deserialize_u64(WholeNumber)
}

/// `None`: it is too large.
async fn collect(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    let first = next(body).await?.unwrap_or_default();
    if body.is_end_stream() || first.is_empty() {
        return Ok((first.len() <= BODY_BYTES_MAX).then_some(first));
    }
    let mut gathered = BytesMut::from(first);
    while let Some(data) = next(body).await? {
        if gathered.len() + data.len() > BODY_BYTES_MAX {
            return Ok(None);
        }
        gathered.extend_from_slice(&data);
    }
    Ok(Some(gathered.freeze()))
}

/// The next part that is not empty.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::broken_off(&error))?;
        match frame.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
    Ok(None)
}

async fn discard(body: &mut Incoming) {
    let all = async {
        let mut taken = 0;
        while let Ok(Some(data)) = next(body).await {
            taken += data.len();
            if taken > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    // Whatever comes later meets a closed connection.
    let _ = tokio::time::timeout(DISCARD_MAX, all).await;
}
