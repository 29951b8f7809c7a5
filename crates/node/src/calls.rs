//! The calls that nodes forward, and the form in which they are sent: Protocol Buffers, so that two neighbouring builds
//! can read each other's calls.
//!
//! Invariant: every event of a call has its id. A call is encoded once, by the node that was asked for the change, and
//! decoded once, by the owner. So all attempts name the end of the log that the node knew before the first of them.

use bytes::Bytes;
use gesta_core::{
    Append, Attempt, Condition, ContentType, DeleteKind, DeleteStream, Error, EventData, EventId,
    EventType, ExpectedRevision, Filter, KnownEnd, Query, Result, Revision, SetStreamMetadata,
    StreamAppend, StreamId, StreamMetadata, Tag, Tags,
};
use prost::Message;
use uuid::Uuid;

use crate::ends::EndMessage;

/// The kind of a call on a link that is an append.
pub(crate) const APPEND: u8 = 1;
/// The kind of a call that is a delete.
pub(crate) const DELETE: u8 = 2;
/// The kind of a call that is a change of metadata.
pub(crate) const SET_METADATA: u8 = 3;

/// The kind of a call of something beside the store.
pub(crate) const SERVICE: u8 = 4;

/// The kind of a call that is an append with conditions. It differs from [`APPEND`], since a build that does not know
/// conditions must not store the events without them.
pub(crate) const APPEND_IF: u8 = 5;

/// A decoded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// What the call asks for.
    pub change: Change,
    /// The end of the log that the node which was asked for the change knew before it sent it first; `None` from a
    /// build that does not tell it.
    known: Option<KnownEnd>,
}

impl Sent {
    /// Returns which attempt the call is. `is_in_doubt` says whether it was sent before.
    pub fn attempt(&self, is_in_doubt: bool) -> Attempt {
        match (self.known, is_in_doubt) {
            (Some(known), false) => Attempt::First(known),
            (known, true) => Attempt::Later(known.unwrap_or(KnownEnd::NOTHING)),
            (None, false) => Attempt::Only,
        }
    }
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The change is an append.
    Append(Append),
    /// The change is a delete. The id is that of its event.
    Delete(DeleteStream, EventId),
    /// The change is a change of metadata. The id is that of its event.
    SetMetadata(SetStreamMetadata, EventId),
}

impl Change {
    /// Makes an append, with ids for the events that have none.
    pub fn append(mut request: Append) -> Self {
        for event in request.streams.iter_mut().flat_map(|part| &mut part.events) {
            event.id.get_or_insert_with(EventId::random);
        }
        Self::Append(request)
    }

    /// Makes a delete, with an id for its event.
    pub fn delete(request: DeleteStream) -> Self {
        Self::Delete(request, EventId::random())
    }

    /// Makes a change of metadata, with an id for its event.
    pub fn set_metadata(request: SetStreamMetadata) -> Self {
        Self::SetMetadata(request, EventId::random())
    }

    /// Refuses a change that breaks a rule, before it is sent.
    ///
    /// # Errors
    /// `InvalidArgument` if the change breaks a limit, or claims a revision that cannot exist.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Append(request) => {
                request.validate()?;
                let parts = request.streams.iter().map(|part| part.expected);
                let conditions = request.conditions.iter().filter_map(|of| match of {
                    Condition::Stream { expected, .. } => Some(*expected),
                    Condition::NoMatch { .. } => None,
                });
                parts.chain(conditions).try_for_each(check_claim)
            }
            Self::Delete(request, _) => check_claim(request.expected),
            Self::SetMetadata(request, _) => check_claim(request.expected),
        }
    }

    /// Returns the kind of the call that the change is sent as.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Append(request) if request.conditions.is_empty() => APPEND,
            Self::Append(_) => APPEND_IF,
            Self::Delete(..) => DELETE,
            Self::SetMetadata(..) => SET_METADATA,
        }
    }

    /// Returns the body of the call that the change is sent as. `known` is the end of the log that this node knows, and
    /// comes before all attempts.
    pub fn encode(&self, known: KnownEnd) -> Bytes {
        let known = Some(EndMessage::from(known));
        match self {
            Self::Append(request) => {
                let call = AppendCall::of(request);
                AppendCall { known, ..call }.encode_to_vec().into()
            }
            Self::Delete(request, id) => {
                let kind = match request.kind {
                    DeleteKind::Soft => 0,
                    DeleteKind::Tombstone => 1,
                };
                let life = LifeCall::of(&request.stream, request.expected, *id);
                let call = LifeCall {
                    kind,
                    known,
                    ..life
                };
                call.encode_to_vec().into()
            }
            Self::SetMetadata(request, id) => {
                let metadata = request.metadata.json().clone();
                let life = LifeCall::of(&request.stream, request.expected, *id);
                let call = LifeCall {
                    metadata,
                    known,
                    ..life
                };
                call.encode_to_vec().into()
            }
        }
    }

    /// Reads a call.
    ///
    /// # Errors
    /// `Unsupported` if this build does not know the call; `InvalidArgument` if its contents break a rule.
    pub fn decode(kind: u8, body: Bytes) -> Result<Sent> {
        let (change, known) = match kind {
            APPEND | APPEND_IF => {
                let mut call = AppendCall::decode(body).map_err(unreadable)?;
                let known = call.known.take();
                (Self::Append(call.read()?), known)
            }
            DELETE | SET_METADATA => {
                let mut call = LifeCall::decode(body).map_err(unreadable)?;
                let known = call.known.take();
                let change = match kind {
                    DELETE => call.read_delete()?,
                    _ => call.read_metadata()?,
                };
                (change, known)
            }
            other => return Err(unreadable(format!("call {other} is not known"))),
        };
        let unknown = || unreadable("an incarnation has no 16 bytes");
        let known = known.map(|end| end.read().ok_or_else(unknown));
        let known = known.transpose()?;
        Ok(Sent { change, known })
    }
}

/// Checks that a claim names a revision that can exist. Otherwise its refusal could not be written.
fn check_claim(expected: ExpectedRevision) -> Result<()> {
    match expected {
        ExpectedRevision::Exact(revision) if revision > Revision::MAX => {
            let rule = format!("must be at most {}, found {revision}", Revision::MAX);
            Err(Error::invalid("expected", rule))
        }
        _ => Ok(()),
    }
}

/// Makes the error for a call that another node has forwarded in a form that this node cannot read.
fn unreadable(why: impl std::fmt::Display) -> Error {
    let text = format!("a call of another node cannot be read: {why}; do their builds differ?");
    gesta_core::ErrorKind::Unsupported(text).into()
}

#[derive(Clone, PartialEq, Message)]
struct AppendCall {
    #[prost(message, repeated, tag = "1")]
    streams: Vec<PartMessage>,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<ConditionMessage>,
    #[prost(message, optional, tag = "3")]
    known: Option<EndMessage>,
}

/// A condition: the state of a stream, or what no event may be. A build that does not know the latter finds a condition
/// on a stream without a name, and refuses it.
#[derive(Clone, PartialEq, Message)]
struct ConditionMessage {
    #[prost(string, tag = "1")]
    stream: String,
    #[prost(message, optional, tag = "2")]
    expected: Option<ExpectedMessage>,
    #[prost(message, optional, tag = "3")]
    no_match: Option<NoMatchMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct NoMatchMessage {
    #[prost(message, repeated, tag = "1")]
    queries: Vec<QueryMessage>,
    /// The checkpoint after which events count.
    #[prost(string, optional, tag = "2")]
    after: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct QueryMessage {
    #[prost(string, repeated, tag = "1")]
    types: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    tags: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    stream_prefixes: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    categories: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct PartMessage {
    #[prost(string, tag = "1")]
    stream: String,
    #[prost(message, optional, tag = "2")]
    expected: Option<ExpectedMessage>,
    #[prost(message, repeated, tag = "3")]
    events: Vec<EventMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct EventMessage {
    #[prost(bytes = "bytes", tag = "1")]
    id: Bytes,
    #[prost(string, tag = "2")]
    event_type: String,
    /// The content type: 0 is JSON, 1 is anything else.
    #[prost(uint32, tag = "3")]
    content_type: u32,
    #[prost(bytes = "bytes", tag = "4")]
    data: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    metadata: Bytes,
    #[prost(string, repeated, tag = "6")]
    tags: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct LifeCall {
    #[prost(string, tag = "1")]
    stream: String,
    #[prost(message, optional, tag = "2")]
    expected: Option<ExpectedMessage>,
    #[prost(bytes = "bytes", tag = "3")]
    id: Bytes,
    /// The kind of a delete: 0 is soft, 1 is a tombstone. The kind has no meaning in a change of metadata.
    #[prost(uint32, tag = "4")]
    kind: u32,
    /// The document of a change of metadata. The document has no meaning in a delete.
    #[prost(bytes = "bytes", tag = "5")]
    metadata: Bytes,
    #[prost(message, optional, tag = "6")]
    known: Option<EndMessage>,
}

/// A claim: one of the names, or a revision.
#[derive(Clone, Copy, PartialEq, Message)]
struct ExpectedMessage {
    /// The kind of the claim: 0 is any, 1 is no stream, 2 is stream exists, 3 is the revision.
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(uint64, tag = "2")]
    revision: u64,
}

impl AppendCall {
    fn of(request: &Append) -> Self {
        let part = |part: &StreamAppend| PartMessage {
            stream: part.stream.as_str().to_owned(),
            expected: Some(part.expected.into()),
            events: part.events.iter().map(EventMessage::from).collect(),
        };
        let condition = |condition: &Condition| match condition {
            Condition::Stream { stream, expected } => ConditionMessage {
                stream: stream.as_str().to_owned(),
                expected: Some((*expected).into()),
                no_match: None,
            },
            Condition::NoMatch { filter, after } => ConditionMessage {
                no_match: Some(NoMatchMessage {
                    queries: filter.any_of.iter().map(QueryMessage::from).collect(),
                    after: after.as_ref().map(ToString::to_string),
                }),
                ..ConditionMessage::default()
            },
        };
        Self {
            streams: request.streams.iter().map(part).collect(),
            conditions: request.conditions.iter().map(condition).collect(),
            known: None,
        }
    }

    fn read(self) -> Result<Append> {
        let part = |part: PartMessage| {
            Ok(StreamAppend {
                stream: StreamId::new(&*part.stream)?,
                expected: read_expected(part.expected)?,
                events: part
                    .events
                    .into_iter()
                    .map(EventMessage::read)
                    .collect::<Result<_>>()?,
            })
        };
        let condition = |condition: ConditionMessage| {
            if let Some(no_match) = condition.no_match {
                let queries = no_match.queries.into_iter().map(QueryMessage::read);
                return Ok(Condition::NoMatch {
                    filter: Filter {
                        any_of: queries.collect::<Result<_>>()?,
                    },
                    after: no_match.after.map(|after| after.parse()).transpose()?,
                });
            }
            Ok(Condition::Stream {
                stream: StreamId::new(&*condition.stream)?,
                expected: read_expected(condition.expected)?,
            })
        };
        let conditions = self.conditions.into_iter().map(condition);
        Ok(Append {
            streams: self.streams.into_iter().map(part).collect::<Result<_>>()?,
            conditions: conditions.collect::<Result<_>>()?,
        })
    }
}

impl From<&Query> for QueryMessage {
    fn from(query: &Query) -> Self {
        Self {
            types: query.types.iter().map(ToString::to_string).collect(),
            tags: query.tags.iter().map(ToString::to_string).collect(),
            stream_prefixes: query.stream_prefixes.clone(),
            categories: query.categories.clone(),
        }
    }
}

impl QueryMessage {
    fn read(self) -> Result<Query> {
        let types = self.types.iter().map(|of| EventType::new(&**of));
        let tags = self.tags.iter().map(|tag| Tag::new(&**tag));
        Ok(Query {
            types: types.collect::<Result<_>>()?,
            tags: tags.collect::<Result<_>>()?,
            stream_prefixes: self.stream_prefixes,
            categories: self.categories,
        })
    }
}

impl From<&EventData> for EventMessage {
    fn from(event: &EventData) -> Self {
        let tags = event.tags.as_slice().iter();
        Self {
            id: event.id.map(id_bytes).unwrap_or_default(),
            event_type: event.event_type.as_str().to_owned(),
            content_type: match event.content_type {
                ContentType::Json => 0,
                ContentType::Binary => 1,
            },
            data: event.data.clone(),
            metadata: event.metadata.clone(),
            tags: tags.map(|tag| tag.as_str().to_owned()).collect(),
        }
    }
}

impl EventMessage {
    fn read(self) -> Result<EventData> {
        let tags = self.tags.iter().map(|tag| Tag::new(&**tag));
        Ok(EventData {
            id: Some(read_id(&self.id)?),
            event_type: EventType::new(&*self.event_type)?,
            content_type: match self.content_type {
                0 => ContentType::Json,
                1 => ContentType::Binary,
                other => return Err(unreadable(format!("content type {other} is not known"))),
            },
            data: self.data,
            metadata: self.metadata,
            tags: Tags::new(tags.collect::<Result<_>>()?)?,
        })
    }
}

impl LifeCall {
    fn of(stream: &StreamId, expected: ExpectedRevision, id: EventId) -> Self {
        Self {
            stream: stream.as_str().to_owned(),
            expected: Some(expected.into()),
            id: id_bytes(id),
            kind: 0,
            metadata: Bytes::new(),
            known: None,
        }
    }

    fn read_delete(self) -> Result<Change> {
        let id = read_id(&self.id)?;
        let request = DeleteStream {
            stream: StreamId::new(&*self.stream)?,
            expected: read_expected(self.expected)?,
            kind: match self.kind {
                0 => DeleteKind::Soft,
                1 => DeleteKind::Tombstone,
                other => return Err(unreadable(format!("delete {other} is not known"))),
            },
        };
        Ok(Change::Delete(request, id))
    }

    fn read_metadata(self) -> Result<Change> {
        let id = read_id(&self.id)?;
        let request = SetStreamMetadata {
            stream: StreamId::new(&*self.stream)?,
            expected: read_expected(self.expected)?,
            metadata: StreamMetadata::parse(self.metadata)?,
        };
        Ok(Change::SetMetadata(request, id))
    }
}

impl From<ExpectedRevision> for ExpectedMessage {
    fn from(expected: ExpectedRevision) -> Self {
        let (kind, revision) = match expected {
            ExpectedRevision::Any => (0, 0),
            ExpectedRevision::NoStream => (1, 0),
            ExpectedRevision::StreamExists => (2, 0),
            ExpectedRevision::Exact(revision) => (3, revision.0),
        };
        Self { kind, revision }
    }
}

fn read_expected(message: Option<ExpectedMessage>) -> Result<ExpectedRevision> {
    match message {
        Some(ExpectedMessage { kind: 0, .. }) => Ok(ExpectedRevision::Any),
        Some(ExpectedMessage { kind: 1, .. }) => Ok(ExpectedRevision::NoStream),
        Some(ExpectedMessage { kind: 2, .. }) => Ok(ExpectedRevision::StreamExists),
        Some(ExpectedMessage { kind: 3, revision }) => {
            Ok(ExpectedRevision::Exact(Revision(revision)))
        }
        other => Err(unreadable(format!("claim {other:?} is not known"))),
    }
}

fn id_bytes(id: EventId) -> Bytes {
    Bytes::copy_from_slice(id.0.as_bytes())
}

fn read_id(bytes: &[u8]) -> Result<EventId> {
    let id = Uuid::from_slice(bytes).map_err(|_| unreadable("an event has no id of 16 bytes"))?;
    Ok(EventId(id))
}

#[cfg(test)]
mod tests {
    use gesta_core::{Incarnation, Position};

    use super::*;

    fn event() -> EventData {
        EventData {
            id: Some(EventId::random()),
            event_type: EventType::new("item-added").expect("valid"),
            content_type: ContentType::Binary,
            data: Bytes::from_static(b"\0\xff"),
            metadata: Bytes::from_static(b"{}"),
            tags: Tags::new(vec![Tag::new("red").expect("valid")]).expect("valid"),
        }
    }

    /// Goal: an owner reads exactly what was asked for elsewhere.
    #[test]
    fn calls_are_read_as_they_were_written() {
        let stream = StreamId::new("cart-1").expect("valid");
        let claims = [
            ExpectedRevision::Any,
            ExpectedRevision::NoStream,
            ExpectedRevision::StreamExists,
            ExpectedRevision::Exact(Revision(7)),
        ];
        for expected in claims {
            let append = Append::to(stream.clone(), expected, vec![event(), event()]);
            let delete = |kind| {
                Change::delete(DeleteStream {
                    stream: stream.clone(),
                    expected,
                    kind,
                })
            };
            let metadata = Change::set_metadata(SetStreamMetadata {
                stream: stream.clone(),
                expected,
                metadata: StreamMetadata::parse(r#"{"$maxCount":2}"#).expect("valid"),
            });
            let other = StreamId::new("cart-2").expect("valid");
            let with_condition = append.clone().provided_that(other, expected);
            assert_eq!(Change::append(with_condition.clone()).kind(), APPEND_IF);
            let changes = [
                Change::append(with_condition),
                Change::append(append),
                delete(DeleteKind::Soft),
                delete(DeleteKind::Tombstone),
                metadata,
            ];
            for change in changes {
                let known = KnownEnd {
                    incarnation: Incarnation(Uuid::from_u128(7)),
                    position: Position(9),
                };
                let read = Change::decode(change.kind(), change.encode(known));
                let read = read.expect("readable");
                assert_eq!(read.attempt(false), Attempt::First(known));
                assert_eq!(read.attempt(true), Attempt::Later(known));
                assert_eq!(read.change, change);
            }
        }
    }

    /// Goal: a call of a build that tells no end of the log is read; sent a second time, it may be stored anywhere.
    #[test]
    fn a_call_without_an_end_of_the_log_is_read() {
        let stream = StreamId::new("s").expect("valid");
        let request = Append::to(stream, ExpectedRevision::Any, vec![event()]);
        let body = AppendCall::of(&request).encode_to_vec().into();
        let read = Change::decode(APPEND, body).expect("readable");
        assert_eq!(read.attempt(false), Attempt::Only);
        assert_eq!(read.attempt(true), Attempt::Later(KnownEnd::NOTHING));
        let cut = AppendCall {
            known: Some(EndMessage::default()),
            ..AppendCall::of(&request)
        };
        assert!(Change::decode(APPEND, cut.encode_to_vec().into()).is_err());
    }

    /// Goal: an event gets its id before the first attempt, and one that has an id keeps it.
    #[test]
    fn ids_are_made_once() {
        let stream = StreamId::new("s").expect("valid");
        let mut bare = event();
        bare.id = None;
        let named = event();
        let append = Append::to(stream, ExpectedRevision::Any, vec![bare, named.clone()]);
        let Change::Append(made) = Change::append(append) else {
            panic!("an append")
        };
        let ids: Vec<_> = made.streams[0]
            .events
            .iter()
            .map(|event| event.id)
            .collect();
        assert!(ids[0].is_some());
        assert_eq!(ids[1], named.id);
    }

    /// Goal: whatever comes over a link is read or refused, and never taken for something else.
    #[test]
    fn what_is_no_call_is_refused() {
        assert!(Change::decode(99, Bytes::new()).is_err());
        for kind in [APPEND, DELETE, SET_METADATA] {
            assert!(Change::decode(kind, Bytes::from_static(b"\xff\xff\xff")).is_err());
        }
        assert!(Change::decode(DELETE, Bytes::new()).is_err(), "no id");
        let nameless = LifeCall::of(
            &StreamId::from_stored("".into()),
            ExpectedRevision::Any,
            EventId::random(),
        );
        assert!(Change::decode(DELETE, nameless.encode_to_vec().into()).is_err());
    }
}
