//! The second version of the protocol: appends to several streams at once, and errors with details.

use std::collections::BTreeMap;

use bytes::Bytes;
use gesta_core::{ContentType, EventData, EventId, EventType, Revision, StreamId, Tags, limits};
use prost_types::value::Kind;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::Result;
use crate::expected::Expected;
use crate::messages::rpc::{BadRequest, ErrorInfo, bad_request::FieldViolation};
use crate::messages::server_errors::AccessDeniedErrorDetails;
use crate::messages::v2::errors::{
    AppendConsistencyViolationErrorDetails, AppendRecordSizeExceededErrorDetails,
    AppendTransactionSizeExceededErrorDetails, ConsistencyViolation,
    StreamAlreadyInAppendSessionErrorDetails, StreamRevisionConflictErrorDetails,
    StreamTombstonedErrorDetails, consistency_violation,
};
use crate::messages::v2::{AppendRecord, SchemaFormat};
use crate::proposed;
use crate::refusal::{Code, Refusal, Unable, detail};

/// How deep the values of properties may be nested. The limit of the decoder is 100.
const DEPTH_MAX: usize = 64;

/// The state of a stream as this version of the protocol shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamState {
    /// The stream exists and has this last revision.
    At(Revision),
    /// The stream never existed.
    NoStream,
    /// The stream was deleted, and had this last revision.
    Deleted(Revision),
    /// The stream is closed for ever.
    Tombstoned,
}

impl StreamState {
    /// Returns the state as a number: the last revision, −1 if there is no stream, −5 if it is deleted, −6 if it is
    /// tombstoned.
    #[must_use]
    pub fn number(self) -> i64 {
        match self {
            StreamState::At(revision) => i64::try_from(revision.0).unwrap_or(i64::MAX),
            StreamState::NoStream => -1,
            StreamState::Deleted(_) => -5,
            StreamState::Tombstoned => -6,
        }
    }

    /// Returns true if the stream is as a check claims. `target` tells whether the call also writes to it.
    #[must_use]
    pub fn is(self, expected: i64, target: Target) -> bool {
        match (expected, self) {
            (0.., StreamState::At(last) | StreamState::Deleted(last)) => {
                u64::try_from(expected) == Ok(last.0)
            }
            // Nothing is claimed; but nobody writes to a stream that is closed.
            (-2, StreamState::Tombstoned) => target == Target::CheckedAlone,
            (-2, _) => true,
            (-1, StreamState::NoStream | StreamState::Deleted(_))
            | (-4, StreamState::At(_))
            | (-5, StreamState::Deleted(_)) => true,
            (-1 | -6, StreamState::Tombstoned) => target == Target::CheckedAlone,
            _ => false,
        }
    }
}

/// Tells whether the call also writes to a stream that it checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The call writes to the stream.
    Written,
    /// The call only checks the stream.
    CheckedAlone,
}

/// Reads the claim of an append to one stream: a revision, −1 no stream, −2 any, −4 stream exists. No number claims
/// nothing.
///
/// # Errors
/// `InvalidArgument` if the number has no meaning.
pub fn expected(number: Option<i64>) -> Result<Expected> {
    match number {
        None | Some(-2) => Ok(Expected::Any),
        Some(-1) => Ok(Expected::NoStream),
        Some(-4) => Ok(Expected::StreamExists),
        Some(other) => match u64::try_from(other) {
            Ok(revision) => Ok(Expected::Exact(Revision(revision))),
            Err(_) => Err(bad(
                "expected_revision",
                format!("must be a revision, -1, -2 or -4, found {other}"),
            )),
        },
    }
}

/// Reads the name of a stream.
///
/// # Errors
/// `InvalidArgument` if the name breaks a rule.
pub fn stream(name: &str) -> Result<StreamId> {
    StreamId::new(name).map_err(|error| bad("stream", error.to_string()))
}

/// Makes an event for this stream of a record. An event without an id gets a random one.
///
/// # Errors
/// `InvalidArgument` if the record breaks a rule or is too large.
pub fn event(record: AppendRecord, stream: &StreamId) -> Result<EventData> {
    let id = match record.record_id.as_deref() {
        None | Some("") => EventId::random(),
        Some(text) => match Uuid::parse_str(text) {
            Ok(id) if !id.is_nil() => EventId(id),
            _ => {
                return Err(bad(
                    "record_id",
                    format!(
                        "must be a UUID that is not all zeros, found {}",
                        crate::refusal::shown(text)
                    ),
                ));
            }
        },
    };
    let schema = record
        .schema
        .ok_or_else(|| bad("schema", "must be given".into()))?;
    let format = format_of(schema.format)?;
    let event_type = event_type(&schema.name)?;
    let metadata = metadata(
        &record.properties,
        &schema.name,
        format,
        schema.id.as_deref(),
    )?;
    let bytes = record.data.len() + metadata.len();
    let bytes_max = proposed::bytes_max(stream);
    if bytes > bytes_max {
        return Err(record_too_large(stream, id, bytes, bytes_max));
    }
    Ok(EventData {
        id: Some(id),
        event_type,
        content_type: match format {
            SchemaFormat::Json => ContentType::Json,
            _ => ContentType::Binary,
        },
        data: record.data,
        metadata,
        tags: Tags::NONE,
    })
}

fn format_of(number: i32) -> Result<SchemaFormat> {
    match SchemaFormat::try_from(number) {
        Ok(format) if format != SchemaFormat::Unspecified => Ok(format),
        _ => Err(bad(
            "schema.format",
            format!("must be 1 (JSON), 2 (Protobuf), 3 (Avro) or 4 (bytes), found {number}"),
        )),
    }
}

fn event_type(name: &str) -> Result<EventType> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.$:-".contains(c);
    if let Some(wrong) = name.chars().find(|&c| !allowed(c)) {
        return Err(bad(
            "schema.name",
            format!("must have letters, digits and _ . $ : - only, found {wrong:?}"),
        ));
    }
    EventType::new(name).map_err(|error| bad("schema.name", error.to_string()))
}

/// Makes the metadata of an event: the properties as a JSON document, with what the schema says beside them.
fn metadata(
    properties: &BTreeMap<String, prost_types::Value>,
    name: &str,
    format: SchemaFormat,
    id: Option<&str>,
) -> Result<Bytes> {
    let mut document = Map::new();
    for (key, value) in properties {
        document.insert(key.clone(), json(value, 0)?);
    }
    let format = match format {
        SchemaFormat::Json | SchemaFormat::Unspecified => "Json",
        SchemaFormat::Protobuf => "Protobuf",
        SchemaFormat::Avro => "Avro",
        SchemaFormat::Bytes => "Bytes",
    };
    document.insert("$schema.name".into(), name.into());
    document.insert("$schema.format".into(), format.into());
    if let Some(id) = id {
        document.insert("$schema.id".into(), id.into());
    }
    Ok(Value::Object(document).to_string().into())
}

fn json(value: &prost_types::Value, depth: usize) -> Result<Value> {
    if depth > DEPTH_MAX {
        return Err(bad(
            "properties",
            format!("must not be nested deeper than {DEPTH_MAX}"),
        ));
    }
    Ok(match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        Some(Kind::NumberValue(number)) => number_of(*number)?,
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => {
            let values = list.values.iter().map(|value| json(value, depth + 1));
            Value::Array(values.collect::<Result<_>>()?)
        }
        Some(Kind::StructValue(object)) => {
            let fields = object.fields.iter();
            let fields = fields.map(|(key, value)| Ok((key.clone(), json(value, depth + 1)?)));
            Value::Object(fields.collect::<Result<_>>()?)
        }
    })
}

fn number_of(number: f64) -> Result<Value> {
    serde_json::Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| {
            bad(
                "properties",
                format!("must be numbers that JSON has, found {number}"),
            )
        })
}

/// Makes an error of this version. `reason` is its name. The detail of its own is the last one, where one client looks
/// for it.
fn refusal(code: Code, message: String, reason: &str, own: Option<prost_types::Any>) -> Refusal {
    let info = ErrorInfo {
        reason: reason.to_owned(),
        domain: "streams".to_owned(),
        metadata: BTreeMap::new(),
    };
    let mut refusal = Refusal::new(code, message);
    refusal.details.push(detail("google.rpc.ErrorInfo", &info));
    refusal.details.extend(own);
    refusal
}

/// Adds the details that this version has for a refusal that any call may get. A refusal that has details stays as it
/// is.
#[must_use]
pub fn detailed(mut refusal: Refusal, operation: &str) -> Refusal {
    if !refusal.details.is_empty() {
        return refusal;
    }
    let (reason, own) = match refusal.code {
        Code::PermissionDenied => ("ACCESS_DENIED", Some(access_denied(operation))),
        Code::DeadlineExceeded => ("OPERATION_TIMEOUT", None),
        Code::Unavailable => (
            match refusal.unable {
                Unable::NotReady | Unable::StoreAway => "SERVER_NOT_READY",
                Unable::Overloaded => "SERVER_OVERLOADED",
                Unable::Stopping => "SERVER_SHUTTING_DOWN",
            },
            None,
        ),
        Code::InvalidArgument => ("BAD_REQUEST", Some(bad_request("", &refusal.message))),
        _ => return refusal,
    };
    let info = ErrorInfo {
        reason: reason.to_owned(),
        domain: "server".to_owned(),
        metadata: BTreeMap::new(),
    };
    refusal.details.push(detail("google.rpc.ErrorInfo", &info));
    refusal.details.extend(own);
    refusal
}

/// Makes the detail of a refusal for want of permission. It does not name the user: the caller knows who that is.
fn access_denied(operation: &str) -> prost_types::Any {
    let own = AccessDeniedErrorDetails {
        operation: operation.to_owned(),
        username: None,
        permission: None,
    };
    detail("kurrent.rpc.AccessDeniedErrorDetails", &own)
}

fn of_streams(name: &str, message: &impl prost::Message) -> Option<prost_types::Any> {
    let full = format!("kurrentdb.protocol.v2.streams.errors.{name}");
    Some(detail(&full, message))
}

/// Makes the error of a field that breaks a rule.
fn bad(field: &str, rule: String) -> Refusal {
    let own = bad_request(field, &rule);
    let message = format!("{field} {rule}");
    refusal(Code::InvalidArgument, message, "BAD_REQUEST", Some(own))
}

fn bad_request(field: &str, rule: &str) -> prost_types::Any {
    let violation = FieldViolation {
        field: field.to_owned(),
        description: rule.to_owned(),
    };
    let own = BadRequest {
        field_violations: vec![violation],
    };
    detail("google.rpc.BadRequest", &own)
}

/// Makes the error of a request without anything to append.
#[must_use]
pub fn no_records() -> Refusal {
    bad("records", "must not be empty".into())
}

/// Makes the error of an append with more records than one may have. `bytes` is the size of all that have come. Clients
/// know this as a transaction that is too large.
#[must_use]
pub fn too_many_records(found: usize, bytes: usize) -> Refusal {
    let most = limits::APPEND_EVENTS_MAX;
    too_large(
        bytes,
        format!("the records must be at most {most}, found {found}"),
    )
}

/// Makes the error of an append to more streams than one may write to. `bytes` is the size of all that have come.
#[must_use]
pub fn too_many_streams(found: usize, bytes: usize) -> Refusal {
    let most = limits::APPEND_STREAMS_MAX;
    let text = format!("the records must be of at most {most} streams, found {found}");
    too_large(bytes, text)
}

/// Makes the error of a check whose number has no meaning, or that names a stream for the second time.
#[must_use]
pub fn bad_check(rule: String) -> Refusal {
    bad("checks", rule)
}

/// Makes the error of a session that ended without a request.
#[must_use]
pub fn no_requests() -> Refusal {
    refusal(
        Code::FailedPrecondition,
        "the session has no requests".into(),
        "APPEND_SESSION_NO_REQUESTS",
        None,
    )
}

/// Makes the error of a session that names a stream twice.
#[must_use]
pub fn stream_twice(stream: &StreamId) -> Refusal {
    refusal(
        Code::Aborted,
        format!("stream '{stream}' is in the session already"),
        "STREAM_ALREADY_IN_APPEND_SESSION",
        of_streams(
            "StreamAlreadyInAppendSessionErrorDetails",
            &StreamAlreadyInAppendSessionErrorDetails {
                stream: stream.as_str().to_owned(),
            },
        ),
    )
}

/// Makes the error of a stream that is closed for ever, or that is deleted and expected to exist.
#[must_use]
pub fn tombstoned(stream: &StreamId) -> Refusal {
    refusal(
        Code::FailedPrecondition,
        format!("stream '{stream}' is tombstoned"),
        "STREAM_TOMBSTONED",
        of_streams(
            "StreamTombstonedErrorDetails",
            &StreamTombstonedErrorDetails {
                stream: stream.as_str().to_owned(),
            },
        ),
    )
}

/// Makes the error of a wrong claim about a stream. `actual` is the last revision of the stream.
#[must_use]
pub fn conflict(stream: &StreamId, expected: Expected, actual: Option<Revision>) -> Refusal {
    let actual = actual.map_or(-1, |revision| StreamState::At(revision).number());
    refusal(
        Code::FailedPrecondition,
        format!(
            "stream '{stream}' is not as expected: expected {}, found {actual}",
            expected.number()
        ),
        "STREAM_REVISION_CONFLICT",
        of_streams(
            "StreamRevisionConflictErrorDetails",
            &StreamRevisionConflictErrorDetails {
                stream: stream.as_str().to_owned(),
                expected_revision: expected.signed(),
                actual_revision: actual,
            },
        ),
    )
}

fn record_too_large(stream: &StreamId, id: EventId, bytes: usize, bytes_max: usize) -> Refusal {
    let own = AppendRecordSizeExceededErrorDetails {
        stream: stream.as_str().to_owned(),
        record_id: id.to_string(),
        size: i32::try_from(bytes).unwrap_or(i32::MAX),
        max_size: i32::try_from(bytes_max).unwrap_or(i32::MAX),
    };
    refusal(
        Code::InvalidArgument,
        format!(
            "record {id} of stream '{stream}' must be at most {bytes_max} bytes, found {bytes}"
        ),
        "APPEND_RECORD_SIZE_EXCEEDED",
        of_streams("AppendRecordSizeExceededErrorDetails", &own),
    )
}

/// Makes the error of an append whose records have too many bytes in total.
#[must_use]
pub fn append_too_large(bytes: usize) -> Refusal {
    let most = limits::APPEND_BYTES_MAX;
    let text = format!("the records must be at most {most} bytes in total, found {bytes}");
    too_large(bytes, text)
}

/// Makes the error of an append that is too large, by whichever limit. The detail tells bytes, whichever limit it is.
pub(crate) fn too_large(bytes: usize, text: String) -> Refusal {
    let own = AppendTransactionSizeExceededErrorDetails {
        size: i32::try_from(bytes).unwrap_or(i32::MAX),
        max_size: i32::try_from(limits::APPEND_BYTES_MAX).unwrap_or(i32::MAX),
    };
    refusal(
        Code::Aborted,
        text,
        "APPEND_TRANSACTION_SIZE_EXCEEDED",
        of_streams("AppendTransactionSizeExceededErrorDetails", &own),
    )
}

/// A check that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Index of the check in the request, from 0.
    pub check: usize,
    /// Stream that is checked.
    pub stream: StreamId,
    /// Number by which the check claims a state.
    pub expected: i64,
    /// State of the stream.
    pub actual: StreamState,
}

/// Makes the error that lists the checks that failed.
#[must_use]
pub fn violations(failed: &[Violation]) -> Refusal {
    let violations = failed.iter().map(|violation| ConsistencyViolation {
        check_index: i32::try_from(violation.check).unwrap_or(i32::MAX),
        r#type: Some(consistency_violation::Type::StreamState(
            consistency_violation::StreamStateViolation {
                stream: violation.stream.as_str().to_owned(),
                expected_state: violation.expected,
                actual_state: violation.actual.number(),
            },
        )),
    });
    let own = AppendConsistencyViolationErrorDetails {
        violations: violations.collect(),
    };
    refusal(
        Code::FailedPrecondition,
        format!("{} checks failed", failed.len()),
        "APPEND_CONSISTENCY_VIOLATION",
        of_streams("AppendConsistencyViolationErrorDetails", &own),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::v2::SchemaInfo;

    fn record(format: i32, name: &str) -> AppendRecord {
        let text = prost_types::Value {
            kind: Some(Kind::StringValue("alice".into())),
        };
        AppendRecord {
            record_id: Some("11111111-2222-3333-4444-555555555555".into()),
            properties: [("user".to_owned(), text)].into(),
            schema: Some(SchemaInfo {
                format,
                name: name.into(),
                id: None,
            }),
            data: Bytes::from_static(b"{}"),
            stream: None,
        }
    }

    fn cart() -> StreamId {
        StreamId::new("cart-1").expect("valid")
    }

    #[test]
    fn records_become_events_with_their_schema_in_the_metadata() {
        let event = event(record(1, "item-added"), &cart()).expect("good");
        assert_eq!(event.event_type.as_str(), "item-added");
        assert_eq!(event.content_type, ContentType::Json);
        assert_eq!(
            event.metadata,
            r#"{"$schema.format":"Json","$schema.name":"item-added","user":"alice"}"#
        );
    }

    #[test]
    fn what_breaks_a_rule_is_named_as_a_field() {
        let mut twice = record(1, "a");
        twice.record_id = Some("x".into());
        let mut nan = record(1, "a");
        let value = prost_types::Value {
            kind: Some(Kind::NumberValue(f64::NAN)),
        };
        nan.properties.insert("n".into(), value);
        for (record, field) in [
            (record(0, "a"), "schema.format"),
            (record(9, "a"), "schema.format"),
            (record(1, ""), "schema.name"),
            (record(1, "a b"), "schema.name"),
            (twice, "record_id"),
            (nan, "properties"),
        ] {
            let refusal = event(record, &cart()).expect_err("refused");
            assert!(refusal.message.starts_with(field), "{refusal:?}");
            assert_eq!(
                refusal.details.last().expect("a detail").type_url,
                "type.googleapis.com/google.rpc.BadRequest"
            );
        }
    }

    /// An overload and a server that stops were told as a server that is not ready yet. Goal: they have their own
    /// reasons.
    #[test]
    fn refusals_of_any_call_have_their_reasons() {
        use prost::Message;
        for (refusal, reason) in [
            (Refusal::unavailable("x"), "SERVER_NOT_READY"),
            (Refusal::overloaded("x"), "SERVER_OVERLOADED"),
            (Refusal::stopping(), "SERVER_SHUTTING_DOWN"),
            (Refusal::deadline(), "OPERATION_TIMEOUT"),
            (Refusal::access_denied(), "ACCESS_DENIED"),
            (Refusal::invalid("x"), "BAD_REQUEST"),
        ] {
            let detailed = detailed(refusal, "AppendRecords");
            let info = ErrorInfo::decode(detailed.details[0].value.as_slice()).expect("a message");
            assert_eq!(
                (info.reason.as_str(), info.domain.as_str()),
                (reason, "server")
            );
        }
    }

    /// Goal: the table of checks in the reference.
    #[test]
    fn checks_compare_states() {
        use StreamState::{At, Deleted, NoStream, Tombstoned};
        let last = Revision(4);
        let table = [
            (4, [true, false, true, false]),
            (3, [false, false, false, false]),
            (-1, [false, true, true, false]),
            (-4, [true, false, false, false]),
            (-5, [false, false, true, false]),
            (-6, [false, false, false, false]),
        ];
        for (expected, right) in table {
            let states = [At(last), NoStream, Deleted(last), Tombstoned];
            for (state, right) in states.into_iter().zip(right) {
                assert_eq!(
                    state.is(expected, Target::Written),
                    right,
                    "{expected} {state:?}"
                );
            }
        }
        assert!(Tombstoned.is(-6, Target::CheckedAlone));
        assert!(Tombstoned.is(-2, Target::CheckedAlone) && !Tombstoned.is(-2, Target::Written));
        assert!(Tombstoned.is(-1, Target::CheckedAlone));
        assert!(!Tombstoned.is(-4, Target::CheckedAlone));
    }
}
