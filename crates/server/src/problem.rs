//! Problem documents (RFC 9457): the one form of every error answer, and the one table from
//! [`ErrorKind`] to status and type.
//!
//! Why `detail` of some kinds is the kind's own text only: a client rebuilds the same [`ErrorKind`]
//! from `type` and the members, without loss.
//! Invariants: a document never carries the cause of an error; causes go to the log.
//! Not here: errors of HTTP itself that hyper answers (`edge`).

use bytes::Bytes;
use gesta_core::{Error, ErrorKind, ExpectedRevision, Revision, StreamId};
use hyper::StatusCode;

use crate::json;

/// What every problem type starts with.
const TYPE_PREFIX: &str = "urn:gesta:problem:";

/// A kind of problem: the stable end of its type, a title for people, its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) status: StatusCode,
}

macro_rules! kinds {
    ($($constant:ident, $name:literal, $status:ident, $title:literal;)*) => {
        $(pub(crate) const $constant: &Kind = &Kind { name: $name, title: $title, status: StatusCode::$status };)*
        /// All kinds, for the tests of the documentation.
        #[cfg(test)]
        pub(crate) const KINDS: &[&Kind] = &[$($constant),*];
    };
}

kinds! {
    INVALID_ARGUMENT, "invalid_argument", BAD_REQUEST, "The request breaks a rule";
    MALFORMED_REQUEST, "malformed_request", BAD_REQUEST, "The request is not valid HTTP";
    URI_TOO_LONG, "uri_too_long", URI_TOO_LONG, "The address is too long";
    HEAD_TOO_LARGE, "head_too_large", REQUEST_HEADER_FIELDS_TOO_LARGE, "The head of the request is too large";
    NOT_FOUND, "not_found", NOT_FOUND, "There is no such address";
    STREAM_NOT_FOUND, "stream_not_found", NOT_FOUND, "There is no such stream";
    EVENT_NOT_FOUND, "event_not_found", NOT_FOUND, "There is no such event";
    METHOD_NOT_ALLOWED, "method_not_allowed", METHOD_NOT_ALLOWED, "The address has no such method";
    REQUEST_TIMEOUT, "request_timeout", REQUEST_TIMEOUT, "The body took too long to arrive";
    WRONG_EXPECTED_REVISION, "wrong_expected_revision", CONFLICT, "The stream is not as expected";
    INVALID_CHECKPOINT, "invalid_checkpoint", CONFLICT, "The checkpoint cannot be used with this store";
    STREAM_TOMBSTONED, "stream_tombstoned", GONE, "The stream was closed for ever";
    PAYLOAD_TOO_LARGE, "payload_too_large", PAYLOAD_TOO_LARGE, "The body is too large";
    UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The body has another media type than JSON";
    MISDIRECTED_REQUEST, "misdirected_request", MISDIRECTED_REQUEST, "The server does not answer to this name";
    REFUSED, "refused", UNPROCESSABLE_ENTITY, "The database refused the events for what they contain";
    UNSUPPORTED, "unsupported", NOT_IMPLEMENTED, "The store cannot do this";
    OVERLOADED, "overloaded", SERVICE_UNAVAILABLE, "A queue is full; nothing was written";
    UNAVAILABLE, "unavailable", SERVICE_UNAVAILABLE, "The store does not answer; nothing was written";
    OUTCOME_UNKNOWN, "outcome_unknown", GATEWAY_TIMEOUT, "It is not known whether the events were stored";
    CORRUPT, "corrupt", INTERNAL_SERVER_ERROR, "Stored data cannot be read";
    SCHEMA, "schema", INTERNAL_SERVER_ERROR, "The store has another schema than the server";
    INTERNAL, "internal", INTERNAL_SERVER_ERROR, "The server failed";
}

/// Claim and fact of a wrong expected revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mismatch {
    expected: ExpectedRevision,
    actual: Option<Revision>,
}

/// One problem document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: &'static Kind,
    pub(crate) detail: String,
    members: Box<Members>,
}

/// What only some kinds of problems tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Members {
    field: Option<String>,
    stream: Option<String>,
    revision: Option<Revision>,
    mismatch: Option<Mismatch>,
    allow: Option<&'static str>,
}

pub(crate) type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub(crate) fn new(kind: &'static Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            members: Box::default(),
        }
    }

    /// A request that breaks a rule: `rule` reads on from `field`.
    pub(crate) fn invalid(field: impl Into<String>, rule: impl AsRef<str>) -> Self {
        let field = field.into();
        Self::new(INVALID_ARGUMENT, format!("{field} {}", rule.as_ref())).field(field)
    }

    /// The same problem, told of the field by the name that it has in this request.
    pub(crate) fn invalid_at(field: impl Into<String>, error: &Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidArgument { rule, .. } => Self::invalid(field, rule),
            _ => Self::from(error),
        }
    }

    pub(crate) fn overloaded(detail: impl Into<String>) -> Self {
        Self::new(OVERLOADED, detail)
    }

    pub(crate) fn field(mut self, field: impl Into<String>) -> Self {
        self.members.field = Some(field.into());
        self
    }

    fn stream(mut self, stream: &StreamId) -> Self {
        self.members.stream = Some(stream.to_string());
        self
    }

    /// The methods that the address has.
    pub(crate) fn allowing(mut self, methods: &'static str) -> Self {
        self.members.allow = Some(methods);
        self
    }

    /// The methods that the address has, if that is the problem.
    pub(crate) fn allow(&self) -> Option<&'static str> {
        self.members.allow
    }

    /// The document as JSON.
    pub(crate) fn to_json(&self) -> Bytes {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(TYPE_PREFIX.as_bytes());
        out.extend_from_slice(self.kind.name.as_bytes());
        out.extend_from_slice(b"\",\"title\":\"");
        out.extend_from_slice(self.kind.title.as_bytes());
        out.extend_from_slice(b"\",\"status\":");
        json::number(&mut out, u64::from(self.kind.status.as_u16()));
        out.extend_from_slice(b",\"detail\":");
        json::string(&mut out, &self.detail);
        for (name, value) in [
            ("field", &self.members.field),
            ("stream", &self.members.stream),
        ] {
            if let Some(value) = value {
                json::key(&mut out, name);
                json::string(&mut out, value);
            }
        }
        if let Some(revision) = self.members.revision {
            json::key(&mut out, "revision");
            json::number(&mut out, revision.0);
        }
        if let Some(mismatch) = self.members.mismatch {
            json::key(&mut out, "expected");
            json::expected(&mut out, mismatch.expected);
            json::key(&mut out, "actual");
            json::optional_number(&mut out, mismatch.actual.map(|r| r.0));
        }
        out.push(b'}');
        out.into()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let problem = of_kind(error.kind());
        if problem.kind.status.is_server_error() && problem.kind != OVERLOADED {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::error!(%error, cause, problem = problem.kind.name, "request failed");
        }
        problem
    }
}

/// The kind of problem that an error becomes.
pub(crate) fn kind_of(error: &Error) -> &'static Kind {
    of_kind(error.kind()).kind
}

/// The table from error kinds to problems.
fn of_kind(kind: &ErrorKind) -> Problem {
    match kind {
        ErrorKind::InvalidArgument { field, rule } => Problem::invalid(field, rule),
        ErrorKind::WrongExpectedRevision {
            stream,
            expected,
            actual,
        } => {
            let mut problem = Problem::new(WRONG_EXPECTED_REVISION, kind.to_string());
            problem.members.mismatch = Some(Mismatch {
                expected: *expected,
                actual: *actual,
            });
            problem.stream(stream)
        }
        ErrorKind::StreamNotFound(stream) => {
            Problem::new(STREAM_NOT_FOUND, kind.to_string()).stream(stream)
        }
        ErrorKind::StreamTombstoned(stream) => {
            Problem::new(STREAM_TOMBSTONED, kind.to_string()).stream(stream)
        }
        ErrorKind::EventNotFound { stream, revision } => {
            let mut problem = Problem::new(EVENT_NOT_FOUND, kind.to_string());
            problem.members.revision = Some(*revision);
            problem.stream(stream)
        }
        ErrorKind::InvalidCheckpoint(detail) => Problem::new(INVALID_CHECKPOINT, detail),
        ErrorKind::Overloaded(detail) => Problem::new(OVERLOADED, detail),
        ErrorKind::Unavailable(detail) => Problem::new(UNAVAILABLE, detail),
        ErrorKind::OutcomeUnknown(detail) => Problem::new(OUTCOME_UNKNOWN, detail),
        ErrorKind::Refused(detail) => Problem::new(REFUSED, detail),
        ErrorKind::Corrupt(detail) => Problem::new(CORRUPT, detail),
        ErrorKind::Schema(detail) => Problem::new(SCHEMA, detail),
        ErrorKind::Unsupported(detail) => Problem::new(UNSUPPORTED, detail),
        _ => Problem::new(INTERNAL, "an error of a kind that has no problem type yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::StreamId;

    fn show(kind: ErrorKind) -> (u16, String) {
        let problem = Problem::from(Error::new(kind).caused_by("a secret"));
        let text = String::from_utf8(problem.to_json().to_vec()).expect("text");
        assert!(!text.contains("secret"), "{text}");
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(parsed["status"], problem.kind.status.as_u16());
        (
            problem.kind.status.as_u16(),
            text.split_once(",\"detail\"").expect("detail").1.to_owned(),
        )
    }

    #[test]
    fn every_kind_has_its_status_and_members() {
        let stream = StreamId::new("a\"b").expect("valid");
        let text = || "why".to_owned();
        let cases = [
            (
                ErrorKind::InvalidArgument {
                    field: "limit".into(),
                    rule: "must be 1".into(),
                },
                400,
                r#":"limit must be 1","field":"limit"}"#,
            ),
            (
                ErrorKind::WrongExpectedRevision {
                    stream: stream.clone(),
                    expected: ExpectedRevision::Exact(Revision(3)),
                    actual: Some(Revision(5)),
                },
                409,
                r#":"stream a\"b is not as expected: expected revision 3, found revision 5","stream":"a\"b","expected":3,"actual":5}"#,
            ),
            (
                ErrorKind::WrongExpectedRevision {
                    stream: stream.clone(),
                    expected: ExpectedRevision::StreamExists,
                    actual: None,
                },
                409,
                r#":"stream a\"b is not as expected: expected stream exists, found no stream","stream":"a\"b","expected":"stream_exists","actual":null}"#,
            ),
            (
                ErrorKind::StreamNotFound(stream.clone()),
                404,
                r#":"stream a\"b not found","stream":"a\"b"}"#,
            ),
            (
                ErrorKind::StreamTombstoned(stream.clone()),
                410,
                r#":"stream a\"b has a tombstone","stream":"a\"b"}"#,
            ),
            (
                ErrorKind::EventNotFound {
                    stream,
                    revision: Revision(7),
                },
                404,
                r#":"event 7 of stream a\"b not found","stream":"a\"b","revision":7}"#,
            ),
            (ErrorKind::InvalidCheckpoint(text()), 409, r#":"why"}"#),
            (ErrorKind::Overloaded(text()), 503, r#":"why"}"#),
            (ErrorKind::Unavailable(text()), 503, r#":"why"}"#),
            (ErrorKind::OutcomeUnknown(text()), 504, r#":"why"}"#),
            (ErrorKind::Refused(text()), 422, r#":"why"}"#),
            (ErrorKind::Corrupt(text()), 500, r#":"why"}"#),
            (ErrorKind::Schema(text()), 500, r#":"why"}"#),
            (ErrorKind::Unsupported(text()), 501, r#":"why"}"#),
        ];
        for (kind, status, rest) in cases {
            assert_eq!(show(kind), (status, rest.to_owned()));
        }
    }

    /// Goal: the table of problem types in the reference is the one that the server uses.
    #[test]
    fn every_problem_type_is_documented() {
        let reference = include_str!("../../../docs/reference/http.md");
        for kind in KINDS {
            let row = format!(
                "| `urn:gesta:problem:{}` | {} |",
                kind.name,
                kind.status.as_u16()
            );
            assert!(reference.contains(&row), "missing in http.md: {row}");
        }
    }
}
