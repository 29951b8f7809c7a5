//! From problem documents back to the error kinds of the server; see the table in `docs/reference/http.md`.

use gesta_core::{Error, ErrorKind, ExpectedRevision, Revision, StreamId};
use serde::Deserialize;

/// What every problem type starts with.
const TYPE_PREFIX: &str = "urn:gesta:problem:";

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    detail: String,
    field: Option<String>,
    stream: Option<String>,
    revision: Option<u64>,
    expected: Option<Expected>,
    actual: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Name(String),
    Revision(u64),
}

/// The error that a problem document tells of; `None` if it is not one of this API.
pub(crate) fn error(json: &[u8]) -> Option<Error> {
    let document: Document = serde_json::from_slice(json).ok()?;
    document.kind().map(Error::new)
}

impl Document {
    fn kind(self) -> Option<ErrorKind> {
        let detail = self.detail;
        let stream = || self.stream.map(|name| StreamId::from_stored(name.into()));
        Some(match self.kind.strip_prefix(TYPE_PREFIX)? {
            "wrong_expected_revision" => ErrorKind::WrongExpectedRevision {
                stream: stream()?,
                expected: match self.expected? {
                    Expected::Revision(revision) => ExpectedRevision::Exact(Revision(revision)),
                    Expected::Name(name) => match name.as_str() {
                        "any" => ExpectedRevision::Any,
                        "no_stream" => ExpectedRevision::NoStream,
                        "stream_exists" => ExpectedRevision::StreamExists,
                        _ => return None,
                    },
                },
                actual: self.actual.map(Revision),
            },
            "stream_not_found" => ErrorKind::StreamNotFound(stream()?),
            "stream_tombstoned" => ErrorKind::StreamTombstoned(stream()?),
            "event_not_found" => ErrorKind::EventNotFound {
                stream: stream()?,
                revision: Revision(self.revision?),
            },
            "invalid_checkpoint" => ErrorKind::InvalidCheckpoint(detail),
            "overloaded" => ErrorKind::Overloaded(detail),
            "unavailable" | "request_timeout" => ErrorKind::Unavailable(detail),
            "outcome_unknown" => ErrorKind::OutcomeUnknown(detail),
            "refused" => ErrorKind::Refused(detail),
            "corrupt" => ErrorKind::Corrupt(detail),
            "schema" => ErrorKind::Schema(detail),
            "unsupported" | "not_found" | "method_not_allowed" => ErrorKind::Unsupported(detail),
            "invalid_argument"
            | "malformed_request"
            | "payload_too_large"
            | "uri_too_long"
            | "head_too_large"
            | "unsupported_media_type" => invalid(self.field, &detail),
            _ => return None,
        })
    }
}

/// The detail reads on from the field.
fn invalid(field: Option<String>, detail: &str) -> ErrorKind {
    let field = field.unwrap_or_else(|| "request".into());
    let rule = detail
        .strip_prefix(&field)
        .unwrap_or(detail)
        .trim_start_matches(':')
        .trim_start()
        .to_owned();
    ErrorKind::InvalidArgument { field, rule }
}
