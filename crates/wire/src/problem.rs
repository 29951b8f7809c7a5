//! Problem documents (RFC 9457): the one form of every error answer, and the one table between [`ErrorKind`] and
//! problem.
//!
//! Why `detail` of some kinds is the kind's own text only: a client rebuilds the same [`ErrorKind`] from `type` and the
//! members, without loss.
//! Invariants: a document never carries the cause of an error; causes go to the log.

use gesta_core::{ErrorKind, LogId, Position, Revision, StreamId, printable};
use serde::{Deserialize, Serialize};

use crate::Expected;
use crate::json;

/// The beginning of every problem type.
const TYPE_PREFIX: &str = "urn:gesta:problem:";

/// A kind of problem: the stable end of its type, a title for people, its HTTP status, and the error that a client
/// makes of it.
#[derive(Debug)]
pub struct ProblemKind {
    /// The last part of the problem type, for example `stream_not_found`.
    pub name: &'static str,
    /// The title, for people.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Makes an error of the detail and the members; `None` if only the HTTP status tells what is wrong.
    error: fn(String, Members) -> Option<ErrorKind>,
}

impl PartialEq for ProblemKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ProblemKind {}

macro_rules! kinds {
    ($($constant:ident, $name:literal, $status:literal, $title:literal, $error:expr;)*) => {
        $(
            #[doc = $title]
            pub const $constant: &ProblemKind = &ProblemKind { name: $name, title: $title, status: $status, error: $error };
        )*
        /// All kinds of problems.
        pub const KINDS: &[&ProblemKind] = &[$($constant),*];
    };
}

kinds! {
    INVALID_ARGUMENT, "invalid_argument", 400, "The request breaks a rule", invalid;
    MALFORMED_REQUEST, "malformed_request", 400, "The request is not valid HTTP", invalid;
    URI_TOO_LONG, "uri_too_long", 414, "The address is too long", invalid;
    HEAD_TOO_LARGE, "head_too_large", 431, "The head of the request is too large", invalid;
    UNAUTHENTICATED, "unauthenticated", 401, "It is not known who calls", |why, _| Some(ErrorKind::Unauthenticated(why));
    FORBIDDEN, "forbidden", 403, "The caller may not do this", |why, _| Some(ErrorKind::Forbidden(why));
    NOT_FOUND, "not_found", 404, "There is no such address", |why, _| Some(ErrorKind::Unsupported(why));
    STREAM_NOT_FOUND, "stream_not_found", 404, "There is no such stream", |_, of| Some(ErrorKind::StreamNotFound(of.stream()?));
    EVENT_NOT_FOUND, "event_not_found", 404, "There is no such event", event_not_found;
    METHOD_NOT_ALLOWED, "method_not_allowed", 405, "The address has no such method", |why, _| Some(ErrorKind::Unsupported(why));
    REQUEST_TIMEOUT, "request_timeout", 408, "The body took too long to arrive", |why, _| Some(ErrorKind::Unavailable(why));
    WRONG_EXPECTED_REVISION, "wrong_expected_revision", 409, "The stream is not as expected", wrong_expected_revision;
    STORED_AND_DELETED, "stored_and_deleted", 409, "The events were stored before, and the stream was deleted since", stored_and_deleted;
    CONDITION_FAILED, "condition_failed", 409, "An event passes the filter of a condition", condition_failed;
    INVALID_CHECKPOINT, "invalid_checkpoint", 409, "The checkpoint cannot be used with this store",
        |why, _| Some(ErrorKind::InvalidCheckpoint(why));
    STREAM_TOMBSTONED, "stream_tombstoned", 410, "The stream was closed for ever", |_, of| Some(ErrorKind::StreamTombstoned(of.stream()?));
    GROUP_NOT_FOUND, "group_not_found", 404, "There is no such consumer group", invalid;
    CONSUMER_NOT_FOUND, "consumer_not_found", 404, "The consumer has left its group", |why, _| Some(ErrorKind::Unavailable(why));
    GROUP_EXISTS, "group_exists", 409, "There is such a consumer group already", invalid;
    GROUP_DROPPED, "group_dropped", 409, "The consumer group was changed, restarted or taken over; join again", |why, _| Some(ErrorKind::Unavailable(why));
    GROUP_HALTED, "group_halted", 409, "The place of the consumer group was lost; say where it goes on", |why, _| Some(ErrorKind::InvalidCheckpoint(why));
    CONSUMER_SILENT, "consumer_silent", 409, "The consumer answered for nothing that it held; join again", |why, _| Some(ErrorKind::Unavailable(why));
    GROUP_FULL, "group_full", 409, "The consumer group has as many consumers as it may have", |why, _| Some(ErrorKind::Overloaded(why));
    GROUP_REPLAYING, "group_replaying", 409, "Parked events are being replayed already", |why, _| Some(ErrorKind::Overloaded(why));
    GROUP_ELSEWHERE, "group_elsewhere", 421, "Another node runs the consumer group", |why, _| Some(ErrorKind::Unsupported(why));
    PAYLOAD_TOO_LARGE, "payload_too_large", 413, "The body is too large", invalid;
    UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", 415, "The body has another media type than JSON", invalid;
    MISDIRECTED_REQUEST, "misdirected_request", 421, "The server does not answer to this name", |_, _| None;
    REFUSED, "refused", 422, "The database refused the events for what they contain", |why, _| Some(ErrorKind::Refused(why));
    UNSUPPORTED, "unsupported", 501, "The store cannot do this", |why, _| Some(ErrorKind::Unsupported(why));
    OVERLOADED, "overloaded", 503, "A queue is full; nothing was written", |why, _| Some(ErrorKind::Overloaded(why));
    UNAVAILABLE, "unavailable", 503, "The store does not answer; nothing was written", |why, _| Some(ErrorKind::Unavailable(why));
    OUTCOME_UNKNOWN, "outcome_unknown", 504, "It is not known whether the events were stored",
        |why, _| Some(ErrorKind::OutcomeUnknown(why));
    CORRUPT, "corrupt", 500, "Stored data cannot be read", |why, _| Some(ErrorKind::Corrupt(why));
    SCHEMA, "schema", 500, "The store has another schema than the server", |why, _| Some(ErrorKind::Schema(why));
    INTERNAL, "internal", 500, "The server failed", |_, _| None;
}

/// Makes the problem document for each kind of error.
impl From<&ErrorKind> for Document {
    fn from(kind: &ErrorKind) -> Self {
        let of_stream = |problem, stream: &StreamId| {
            let mut document = Self::new(problem, kind.to_string());
            document.members.stream = Some(stream.to_string());
            document
        };
        match kind {
            ErrorKind::InvalidArgument { field, rule } => Self::invalid(field, rule),
            ErrorKind::WrongExpectedRevision {
                stream,
                expected,
                actual,
            } => {
                let mut document = of_stream(WRONG_EXPECTED_REVISION, stream);
                document.members.expected = Some(Expected(*expected));
                document.members.actual = Some(actual.map(|revision| revision.0));
                document
            }
            ErrorKind::StoredAndDeleted { stream, position } => {
                let mut document = of_stream(STORED_AND_DELETED, stream);
                document.members.position = Some(position.0);
                document
            }
            ErrorKind::ConditionFailed { log, position } => {
                let mut document = Self::new(CONDITION_FAILED, kind.to_string());
                document.members.log = Some(log.0);
                document.members.position = Some(position.0);
                document
            }
            ErrorKind::StreamNotFound(stream) => of_stream(STREAM_NOT_FOUND, stream),
            ErrorKind::StreamTombstoned(stream) => of_stream(STREAM_TOMBSTONED, stream),
            ErrorKind::EventNotFound { stream, revision } => {
                let mut document = of_stream(EVENT_NOT_FOUND, stream);
                document.members.revision = Some(revision.0);
                document
            }
            ErrorKind::InvalidCheckpoint(why) => Self::new(INVALID_CHECKPOINT, why),
            ErrorKind::Overloaded(why) => Self::new(OVERLOADED, why),
            ErrorKind::Unavailable(why) => Self::new(UNAVAILABLE, why),
            ErrorKind::OutcomeUnknown(why) => Self::new(OUTCOME_UNKNOWN, why),
            ErrorKind::Refused(why) => Self::new(REFUSED, why),
            ErrorKind::Corrupt(why) => Self::new(CORRUPT, why),
            ErrorKind::Schema(why) => Self::new(SCHEMA, why),
            ErrorKind::Unsupported(why) => Self::new(UNSUPPORTED, why),
            ErrorKind::Unauthenticated(why) => Self::new(UNAUTHENTICATED, why),
            ErrorKind::Forbidden(why) => Self::new(FORBIDDEN, why),
            _ => Self::new(INTERNAL, "an error of a kind that has no problem type yet"),
        }
    }
}

/// Makes the error of a broken rule. The detail is the name of the field, followed by the rule.
fn invalid(detail: String, of: Members) -> Option<ErrorKind> {
    let Some(field) = of.field else {
        return Some(ErrorKind::InvalidArgument {
            field: "request".into(),
            rule: format!("was refused: {detail}"),
        });
    };
    let rule = detail
        .strip_prefix(&field)
        .unwrap_or(&detail)
        .trim_start_matches(':')
        .trim_start()
        .to_owned();
    Some(ErrorKind::InvalidArgument { field, rule })
}

fn event_not_found(_: String, of: Members) -> Option<ErrorKind> {
    Some(ErrorKind::EventNotFound {
        stream: of.stream()?,
        revision: Revision(of.revision?),
    })
}

fn wrong_expected_revision(_: String, of: Members) -> Option<ErrorKind> {
    Some(ErrorKind::WrongExpectedRevision {
        stream: of.stream()?,
        expected: of.expected?.0,
        actual: of.actual.flatten().map(Revision),
    })
}

fn stored_and_deleted(_: String, of: Members) -> Option<ErrorKind> {
    Some(ErrorKind::StoredAndDeleted {
        stream: of.stream()?,
        position: Position(of.position?),
    })
}

fn condition_failed(_: String, of: Members) -> Option<ErrorKind> {
    Some(ErrorKind::ConditionFailed {
        log: LogId(of.log?),
        position: Position(of.position?),
    })
}

/// A problem document: what an error answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The kind of the problem.
    pub kind: &'static ProblemKind,
    /// What is wrong, for people.
    pub detail: String,
    /// What only problems of some kinds tell.
    pub members: Box<Members>,
}

/// What only problems of some kinds tell; each member is `None` if the problem does not tell it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Members {
    /// The part of the request that breaks a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The name of the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The revision that is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The revision that the writer expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// The last revision of the stream, `null` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<Option<u64>>,
    /// The log of the event that passes the filter of a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<u16>,
    /// The position at which the events were stored before, or of the event that passes the filter of a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The node that runs the consumer group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<GroupNode>,
    /// The maximum that was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
}

/// A node that runs a consumer group, because it owns the log of the group's checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupNode {
    /// The number of that log.
    pub log: u16,
    /// The number of the node.
    pub node: u32,
    /// The address at which the other nodes reach this node.
    pub address: String,
}

impl Members {
    fn stream(&self) -> Option<StreamId> {
        Some(StreamId::from_stored(self.stream.as_deref()?.into()))
    }
}

#[derive(Serialize, Deserialize)]
struct ProblemText<M> {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    status: u16,
    #[serde(default)]
    detail: String,
    #[serde(flatten)]
    members: M,
}

impl Document {
    /// Makes a document without members.
    #[must_use]
    pub fn new(kind: &'static ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            members: Box::default(),
        }
    }

    /// Makes the document for a request that breaks a rule. `rule` continues a sentence that begins with `field`.
    #[must_use]
    pub fn invalid(field: impl Into<String>, rule: impl AsRef<str>) -> Self {
        let field = field.into();
        let mut document = Self::new(INVALID_ARGUMENT, format!("{field} {}", rule.as_ref()));
        document.members.field = Some(field);
        document
    }

    /// Writes the document as JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        let text = ProblemText {
            kind: format!("{TYPE_PREFIX}{}", self.kind.name),
            title: self.kind.title.to_owned(),
            status: self.kind.status,
            detail: printable(&self.detail).into_owned(),
            members: &*self.members,
        };
        json::value(&mut out, &text);
        out
    }

    /// Writes the document as the body of an answer: as JSON, with a line break at its end.
    #[must_use]
    pub fn to_body(&self) -> Vec<u8> {
        let mut out = self.to_json();
        out.push(b'\n');
        out
    }

    /// Reads a document from JSON; `None` if it is no problem document of this API.
    #[must_use]
    pub fn read(json: &[u8]) -> Option<Self> {
        let text: ProblemText<Members> = serde_json::from_slice(json).ok()?;
        let name = text.kind.strip_prefix(TYPE_PREFIX)?;
        Some(Self {
            kind: KINDS.iter().find(|kind| kind.name == name)?,
            detail: text.detail,
            members: Box::new(text.members),
        })
    }

    /// Returns the error that the document stands for; `None` if only the HTTP status tells what is wrong.
    #[must_use]
    pub fn into_error(self) -> Option<ErrorKind> {
        (self.kind.error)(self.detail, *self.members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{Error, ExpectedRevision};

    fn show(kind: ErrorKind) -> (u16, String) {
        let error = Error::new(kind).caused_by("a secret");
        let document = Document::from(error.kind());
        let text = String::from_utf8(document.to_json()).expect("text");
        assert!(!text.contains("secret"), "{text}");
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(parsed["status"], document.kind.status);
        let read = Document::read(text.as_bytes()).expect("readable");
        let found = read.into_error().expect("an error");
        assert_eq!(format!("{found:?}"), format!("{:?}", error.kind()));
        (
            document.kind.status,
            text.split_once(",\"detail\"").expect("detail").1.to_owned(),
        )
    }

    /// Goal: a detail that is a sentence of its own is not glued to a word before it.
    #[test]
    fn a_broken_rule_without_a_field_reads_as_a_sentence() {
        let answer = br#"{"type":"urn:gesta:problem:invalid_argument","status":400,"detail":"this port speaks TLS only"}"#;
        let read = Document::read(answer).expect("readable");
        assert_eq!(
            read.into_error().expect("an error").to_string(),
            "request was refused: this port speaks TLS only"
        );
    }

    #[test]
    fn kinds_with_members_have_their_status_and_these() {
        let stream = StreamId::new("a\"b").expect("valid");
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
                ErrorKind::ConditionFailed {
                    log: LogId(3),
                    position: Position(9),
                },
                409,
                r#":"an event at position 9 of log 3 passes the filter of a condition of the append","log":3,"position":9}"#,
            ),
            (
                ErrorKind::StoredAndDeleted {
                    stream: stream.clone(),
                    position: Position(9),
                },
                409,
                r#":"the events were stored in stream a\"b before, at position 9, and the stream was deleted since","stream":"a\"b","position":9}"#,
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
        ];
        for (kind, status, rest) in cases {
            assert_eq!(show(kind), (status, rest.to_owned()));
        }
    }

    #[test]
    fn kinds_with_a_reason_alone_have_their_status() {
        let text = || "why".to_owned();
        let cases = [
            (ErrorKind::InvalidCheckpoint(text()), 409),
            (ErrorKind::Overloaded(text()), 503),
            (ErrorKind::Unavailable(text()), 503),
            (ErrorKind::OutcomeUnknown(text()), 504),
            (ErrorKind::Refused(text()), 422),
            (ErrorKind::Corrupt(text()), 500),
            (ErrorKind::Schema(text()), 500),
            (ErrorKind::Unsupported(text()), 501),
            (ErrorKind::Unauthenticated(text()), 401),
            (ErrorKind::Forbidden(text()), 403),
        ];
        for (kind, status) in cases {
            assert_eq!(show(kind), (status, r#":"why"}"#.to_owned()));
        }
    }

    /// Goal: the table of problem types in the reference is the one that the server uses.
    #[test]
    fn every_problem_type_is_documented() {
        let reference = include_str!("../../../docs/reference/http.md");
        for kind in KINDS {
            let row = format!("| `urn:gesta:problem:{}` | {} |", kind.name, kind.status);
            assert!(reference.contains(&row), "missing in http.md: {row}");
        }
    }

    /// Goal: a client takes every code of the table, and no other.
    #[test]
    fn every_code_is_read_as_it_was_written() {
        for kind in KINDS {
            let mut document = Document::new(kind, "why");
            *document.members = Members {
                field: Some("limit".into()),
                stream: Some("cart-1".into()),
                revision: Some(7),
                expected: Some(Expected::default()),
                actual: Some(Some(8)),
                log: Some(3),
                position: Some(9),
                owner: Some(GroupNode {
                    log: 3,
                    node: 4,
                    address: "host:1".into(),
                }),
                max: Some(5),
            };
            assert_eq!(
                Document::read(&document.to_json()).as_ref(),
                Some(&document)
            );
            let is_told_by_status = [MISDIRECTED_REQUEST, INTERNAL].contains(kind);
            assert_eq!(
                document.into_error().is_none(),
                is_told_by_status,
                "{}",
                kind.name
            );
        }
        for bad in [
            "",
            "{}",
            r#"{"type":"urn:gesta:problem:odd"}"#,
            r#"{"type":"about:blank"}"#,
        ] {
            assert_eq!(Document::read(bad.as_bytes()), None);
        }
        let bare = Document::read(br#"{"type":"urn:gesta:problem:stream_not_found"}"#);
        assert_eq!(
            bare.expect("known").into_error(),
            None,
            "it names no stream"
        );
    }
}
