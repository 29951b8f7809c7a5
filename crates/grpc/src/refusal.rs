//! Refusals: the status that ends a call, and the trailers of which clients make their own exceptions.

use bytes::Bytes;
use gesta_core::{Error, ErrorKind, Revision, StreamId, limits, printable};
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::Message;
use prost_types::Any;

use crate::expected::Expected;
use crate::messages::rpc;

/// The statuses of gRPC that Gesta gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Code {
    /// The call was carried out.
    Ok = 0,
    /// The call was given up.
    Cancelled = 1,
    /// The request breaks a rule.
    InvalidArgument = 3,
    /// The time that the client gave is over.
    DeadlineExceeded = 4,
    /// What is asked for does not exist.
    NotFound = 5,
    /// What is to be created exists already.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A message is too large, or a limit of the call is reached.
    ResourceExhausted = 8,
    /// The state of a stream does not allow this.
    FailedPrecondition = 9,
    /// The outcome of the call is not known, or the call was given up half way.
    Aborted = 10,
    /// This server does not have this call.
    Unimplemented = 12,
    /// Trying again may help.
    Unavailable = 14,
    /// What is stored cannot be read.
    DataLoss = 15,
    /// The caller has not proved who they are.
    Unauthenticated = 16,
}

/// Why a server cannot do now what is asked for. Version 2 of the protocol tells these apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unable {
    /// The server is not ready for another reason than these.
    #[default]
    NotReady,
    /// The server cannot reach its store. An append whose outcome is unknown counts too, whatever its status is.
    StoreAway,
    /// The server has no memory or no place for it.
    Overloaded,
    /// The server is stopping.
    Stopping,
}

/// The error with which a call ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Status of the call.
    pub code: Code,
    /// Text for people. Some clients compare it.
    pub message: String,
    /// Trailers by which some clients tell one exception from another. Names have small letters only.
    pub trailers: Vec<(&'static str, String)>,
    /// Details that stand in `grpc-status-details-bin`. Errors of the second version of the protocol have them.
    pub details: Vec<Any>,
    /// Why the server cannot do it now. It means something with `Unavailable`, and with `Aborted` of an append.
    pub(crate) unable: Unable,
    /// Why the call failed, for the log, if that is more than the caller is told.
    pub(crate) why: Option<String>,
    /// Whether the message says what only those may know who look after the server.
    pub(crate) is_for_operators: bool,
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// Most bytes of the value of a trailer, before characters are encoded. No name of a stream is longer.
const TRAILER_BYTES_MAX: usize = 1_024;
/// Name of the trailer that names the exception.
const EXCEPTION: &str = "exception";
/// Exception of an append that is too large, and the trailer with the limit in bytes.
pub(crate) const APPEND_TOO_LARGE: &str = "maximum-append-size-exceeded";
pub(crate) const APPEND_SIZE_MAX: &str = "maximum-append-size";

/// Characters that are encoded in a trailer: all but printable ASCII, and `%`, which begins an encoded character.
const NOT_IN_TRAILERS: &AsciiSet = &CONTROLS.add(b'%');

impl Refusal {
    /// Makes a refusal of a status and a message.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: printable(&message.into()).into_owned(),
            trailers: Vec::new(),
            details: Vec::new(),
            unable: Unable::NotReady,
            why: None,
            is_for_operators: false,
        }
    }

    /// Returns what the log is told of why the call failed.
    #[must_use]
    pub fn why(&self) -> &str {
        self.why.as_deref().unwrap_or(&self.message)
    }

    /// Leaves out of a refusal by the store what only those may know who look after the server, and says this instead.
    #[must_use]
    pub fn for_others(mut self, instead: &str) -> Self {
        if self.is_for_operators {
            let why = std::mem::replace(&mut self.message, instead.to_owned());
            self.why.get_or_insert(why);
        }
        self
    }

    /// Returns true if the message says what only those may know who look after the server.
    #[must_use]
    pub fn is_for_operators(&self) -> bool {
        self.is_for_operators
    }

    /// Returns true if the call failed because the server cannot reach its store.
    #[must_use]
    pub fn is_store_away(&self) -> bool {
        self.unable == Unable::StoreAway
    }

    /// Refuses a request that breaks a rule.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// Refuses a caller who has not proved who they are.
    #[must_use]
    pub fn unauthenticated() -> Self {
        Self::new(Code::Unauthenticated, "Unauthenticated")
    }

    /// Refuses what the caller may not do.
    #[must_use]
    pub fn access_denied() -> Self {
        Self::new(Code::PermissionDenied, "Access Denied").exception("access-denied")
    }

    /// Refuses what the server cannot do now.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// Refuses what the server has no memory or no place for now.
    #[must_use]
    pub fn overloaded(detail: impl std::fmt::Display) -> Self {
        Self {
            unable: Unable::Overloaded,
            ..Self::unavailable(format!("Server Is Too Busy: {detail}"))
        }
    }

    /// Refuses what a server that is stopping does not begin or go on with.
    #[must_use]
    pub fn stopping() -> Self {
        Self {
            unable: Unable::Stopping,
            ..Self::unavailable("the server is stopping")
        }
    }

    /// Refuses what another node does. Clients connect to that node and call again.
    #[must_use]
    pub fn not_leader(host: &str, port: u16) -> Self {
        // One client compares the text.
        Self::new(Code::NotFound, "Leader info available")
            .exception("not-leader")
            .trailer("leader-endpoint-host", host)
            .trailer("leader-endpoint-port", port.to_string())
    }

    /// Refuses a call whose time, which the client gave, is over.
    #[must_use]
    pub fn deadline() -> Self {
        Self::new(
            Code::DeadlineExceeded,
            "the deadline of the call has passed",
        )
    }

    /// Refuses a call that this server does not have. The message says what to use instead, if there is something.
    #[must_use]
    pub fn unimplemented(path: &str) -> Self {
        let mut message = format!("{} is not served", shown(path));
        if let Some(advice) = crate::instead::of(path) {
            message.push_str(": ");
            message.push_str(advice);
        }
        Self::new(Code::Unimplemented, message)
    }

    /// Adds the name of an exception.
    #[must_use]
    pub fn exception(mut self, name: &'static str) -> Self {
        self.trailers.push((EXCEPTION, name.to_owned()));
        self
    }

    /// Adds a trailer. A value longer than 1,024 bytes is cut: the client may have sent it, and clients refuse long
    /// heads.
    #[must_use]
    pub fn trailer(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let mut value = value.into();
        value.truncate(value.floor_char_boundary(TRAILER_BYTES_MAX));
        self.trailers.push((name, value));
        self
    }

    /// Returns the value of a trailer, if the refusal has it.
    #[must_use]
    pub fn trailer_value(&self, name: &str) -> Option<&str> {
        let found = self.trailers.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the name of the exception that clients make of the refusal, if it has one.
    #[must_use]
    pub fn exception_name(&self) -> Option<&str> {
        self.trailer_value(EXCEPTION)
    }

    /// Refuses a call for a stream that is closed for ever, or that is deleted and expected to exist.
    #[must_use]
    pub fn stream_deleted(stream: &StreamId) -> Self {
        Self::new(
            Code::FailedPrecondition,
            format!("Event stream '{stream}' is deleted."),
        )
        .exception("stream-deleted")
        .trailer("stream-name", stream.as_str())
    }

    /// Refuses a delete whose claim about the stream is wrong. One client takes the numbers out of the sentence.
    #[must_use]
    pub fn wrong_expected_version(
        stream: &StreamId,
        expected: Expected,
        actual: Option<Revision>,
    ) -> Self {
        let actual = actual.map_or_else(|| "-1".to_owned(), |revision| revision.to_string());
        Self::new(
            Code::FailedPrecondition,
            format!(
                "Delete failed due to WrongExpectedVersion. Stream: {stream}, Expected version: {}, Actual version: {actual}",
                expected.number()
            ),
        )
        .exception("wrong-expected-version")
        .trailer("stream-name", stream.as_str())
        .trailer("expected-version", expected.number())
        .trailer("actual-version", actual)
    }

    /// Refuses an event without a type or a content type.
    #[must_use]
    pub fn missing_metadata(key: &str) -> Self {
        Self::invalid(format!("Required Metadata Property '{key}' is missing"))
            .exception("missing-required-metadata-property")
            .trailer("required-metadata-properties", "type,content-type")
    }

    /// Refuses an append whose events are too large together. `bytes_max` is the limit in bytes.
    #[must_use]
    pub fn append_too_large(bytes_max: usize) -> Self {
        Self::too_large(
            format!("Maximum Append Size of {bytes_max} Exceeded."),
            bytes_max,
        )
    }

    /// Refuses an append that has too many events. Clients know this as an append that is too large; the size that they
    /// show is that of the largest append in bytes.
    #[must_use]
    pub fn too_many_events(found: usize) -> Self {
        let most = limits::APPEND_EVENTS_MAX;
        let text = format!("an append must have at most {most} events, found {found}");
        Self::too_large(text, limits::APPEND_BYTES_MAX)
    }

    /// Refuses what is too large to append. All clients make an exception of their own of this.
    pub(crate) fn too_large(text: String, bytes_max: usize) -> Self {
        Self::invalid(text)
            .exception(APPEND_TOO_LARGE)
            .trailer(APPEND_SIZE_MAX, bytes_max.to_string())
    }

    /// Refuses a read of an index: there are no indexes.
    #[must_use]
    pub fn no_index(name: &str) -> Self {
        let text = format!("there is no index {}", shown(name));
        Self::new(Code::NotFound, text)
            .exception("index-not-found")
            .trailer("index-name", name)
    }

    /// Refuses to stop a scavenge whose id is unknown, or that has ended.
    #[must_use]
    pub fn no_scavenge(id: &str) -> Self {
        let text = format!("no scavenge {} is running", shown(id));
        Self::new(Code::NotFound, text)
            .exception("scavenge-not-found")
            .trailer("scavenge-id", id)
    }

    /// Refuses an event that is too large. `bytes` is its size and `bytes_max` the limit. Newer servers have an
    /// exception of its own for this, which no published client knows; so it is that of an append that is too large.
    #[must_use]
    pub fn event_too_large(id: impl std::fmt::Display, bytes: usize, bytes_max: usize) -> Self {
        let text = format!(
            "Maximum Append Event Size of {bytes_max} Exceeded by event {id} of {bytes} bytes."
        );
        Self::too_large(text, bytes_max)
            .trailer("maximum-append-event-size", bytes_max.to_string())
            .trailer("event-id", id.to_string())
            .trailer("proposed-append-event-size", bytes.to_string())
    }

    /// Returns the status, the message, the details and all trailers as they end a call.
    #[must_use]
    pub fn to_trailers(&self) -> HeaderMap {
        let mut map = status(self.code);
        if !self.message.is_empty() {
            insert(&mut map, GRPC_MESSAGE, &self.message);
        }
        for (name, value) in &self.trailers {
            insert(&mut map, HeaderName::from_static(name), value);
        }
        if !self.details.is_empty() {
            let details = rpc::Status {
                code: self.code as i32,
                message: self.message.clone(),
                details: self.details.clone(),
            };
            use base64::Engine as _;
            let text =
                base64::engine::general_purpose::STANDARD_NO_PAD.encode(details.encode_to_vec());
            insert(&mut map, GRPC_STATUS_DETAILS, &text);
        }
        map
    }
}

/// Returns the trailers of a call that was carried out.
#[must_use]
pub fn success() -> HeaderMap {
    status(Code::Ok)
}

fn status(code: Code) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(4);
    map.insert(GRPC_STATUS, HeaderValue::from(code as i32));
    map
}

fn insert(map: &mut HeaderMap, name: HeaderName, value: &str) {
    let encoded = utf8_percent_encode(value, NOT_IN_TRAILERS).to_string();
    // Printable ASCII always is a value.
    if let Ok(value) = HeaderValue::try_from(encoded) {
        map.insert(name, value);
    }
}

/// Makes a detail of an error. `name` is the full name of the message.
#[must_use]
pub fn detail(name: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: Bytes::from(message.encode_to_vec()).into(),
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        let cause = || {
            let cause = std::error::Error::source(error)?.to_string();
            Some(printable(&cause).into_owned())
        };
        match error.kind() {
            ErrorKind::StreamTombstoned(stream) => Self::stream_deleted(stream),
            ErrorKind::StreamNotFound(stream) => Self::new(
                Code::NotFound,
                format!("Event stream '{stream}' is not found."),
            )
            .exception("stream-not-found")
            .trailer("stream-name", stream.as_str()),
            ErrorKind::WrongExpectedRevision {
                stream,
                expected,
                actual,
            } => Self::wrong_expected_version(stream, Expected::from(*expected), *actual),
            ErrorKind::Overloaded(detail) => Self::overloaded(detail),
            ErrorKind::Unauthenticated(_) => Self::unauthenticated(),
            ErrorKind::Forbidden(_) => Self::access_denied(),
            kind @ (ErrorKind::Unavailable(_) | ErrorKind::OutcomeUnknown(_)) => Self {
                unable: Unable::StoreAway,
                why: cause(),
                is_for_operators: true,
                ..Self::new(code(kind), kind.to_string())
            },
            kind => Self {
                why: cause(),
                is_for_operators: matches!(kind, ErrorKind::Corrupt(_) | ErrorKind::Schema(_))
                    || error.is_for_administrator(),
                ..Self::new(code(kind), kind.to_string())
            },
        }
    }
}

fn code(kind: &ErrorKind) -> Code {
    match kind {
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidCheckpoint(_)
        | ErrorKind::Refused(_) => Code::InvalidArgument,
        ErrorKind::StreamNotFound(_) | ErrorKind::EventNotFound { .. } => Code::NotFound,
        ErrorKind::WrongExpectedRevision { .. }
        | ErrorKind::ConditionFailed { .. }
        | ErrorKind::StoredAndDeleted { .. }
        | ErrorKind::StreamTombstoned(_)
        | ErrorKind::Schema(_) => Code::FailedPrecondition,
        ErrorKind::OutcomeUnknown(_) => Code::Aborted,
        ErrorKind::Corrupt(_) => Code::DataLoss,
        ErrorKind::Unsupported(_) => Code::Unimplemented,
        // A kind that is newer than this table: trying again does no harm.
        _ => Code::Unavailable,
    }
}

/// Shows a text of a client in quotes, cut after 60 characters.
pub(crate) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cart() -> StreamId {
        StreamId::new("größe%1").expect("valid")
    }

    #[test]
    fn a_store_that_is_away_is_told_from_a_server_that_is_full() {
        let is_away = |kind: ErrorKind| Refusal::from(Error::new(kind)).is_store_away();
        assert!(is_away(ErrorKind::Unavailable("away".into())));
        assert!(is_away(ErrorKind::OutcomeUnknown("lost".into())));
        assert!(!is_away(ErrorKind::Overloaded("full".into())));
        assert!(!is_away(ErrorKind::StreamNotFound(cart())));
        assert!(!Refusal::stopping().is_store_away());
    }

    #[test]
    fn trailers_are_ascii_whatever_the_names_are() {
        let trailers = Refusal::stream_deleted(&cart()).to_trailers();
        assert_eq!(trailers["grpc-status"], "9");
        assert_eq!(trailers["exception"], "stream-deleted");
        assert_eq!(trailers["stream-name"], "gr%C3%B6%C3%9Fe%251");
        assert_eq!(
            trailers["grpc-message"],
            "Event stream 'gr%C3%B6%C3%9Fe%251' is deleted."
        );
    }

    /// The id of a scavenge came back as a trailer however long it was, which no client takes. Goal: values are cut,
    /// and never in the middle of a character.
    #[test]
    fn trailers_have_a_longest_value() {
        let refusal = Refusal::no_scavenge(&format!("x{}", "ö".repeat(10_000)));
        let id = refusal.trailer_value("scavenge-id").expect("a value");
        assert_eq!((id.len(), id.chars().count()), (1_023, 512));
        let name = "s".repeat(TRAILER_BYTES_MAX);
        let refusal = Refusal::stream_deleted(&StreamId::new(name.as_str()).expect("valid"));
        assert_eq!(refusal.trailer_value("stream-name"), Some(name.as_str()));
    }

    #[test]
    fn the_sentence_of_a_wrong_version_has_the_form_that_a_client_takes_apart() {
        let stream = StreamId::new("cart-1").expect("valid");
        let refusal = Refusal::wrong_expected_version(&stream, Expected::Exact(Revision(3)), None);
        assert_eq!(
            refusal.message,
            "Delete failed due to WrongExpectedVersion. Stream: cart-1, Expected version: 3, Actual version: -1"
        );
        let trailers = refusal.to_trailers();
        assert_eq!(trailers["expected-version"], "3");
        assert_eq!(trailers["actual-version"], "-1");
    }

    #[test]
    fn no_error_of_a_store_becomes_internal_or_unknown() {
        let kinds = [
            (ErrorKind::Unavailable("x".into()), Code::Unavailable),
            (ErrorKind::Overloaded("x".into()), Code::Unavailable),
            (ErrorKind::OutcomeUnknown("x".into()), Code::Aborted),
            (ErrorKind::Refused("x".into()), Code::InvalidArgument),
            (ErrorKind::Corrupt("x".into()), Code::DataLoss),
            (
                ErrorKind::InvalidCheckpoint("x".into()),
                Code::InvalidArgument,
            ),
            (ErrorKind::Unsupported("x".into()), Code::Unimplemented),
            (ErrorKind::StreamNotFound(cart()), Code::NotFound),
        ];
        for (kind, code) in kinds {
            assert_eq!(Refusal::from(Error::new(kind.clone())).code, code, "{kind}");
        }
    }

    #[test]
    fn details_repeat_the_status_and_the_message() {
        let mut refusal = Refusal::invalid("x");
        refusal
            .details
            .push(detail("google.rpc.ErrorInfo", &rpc::ErrorInfo::default()));
        use base64::Engine as _;
        let text = refusal.to_trailers()["grpc-status-details-bin"].clone();
        let bytes = base64::engine::general_purpose::STANDARD_NO_PAD
            .decode(text.as_bytes())
            .expect("base64");
        let status = rpc::Status::decode(bytes.as_slice()).expect("a status");
        assert_eq!((status.code, status.message.as_str()), (3, "x"));
    }
}
