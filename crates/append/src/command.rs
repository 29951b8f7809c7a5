//! The commands that callers give to the pipeline, in the one form in which it works with them.

mod doubt;

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::backend::Backend;
use gesta_core::{
    After, Append, Attempt, Checkpoint, Condition, DeleteKind, DeleteStream, Error, EventData,
    EventId, EventType, ExpectedRevision, Filter, LifecycleChange, Moment, Position, Query, Result,
    SetStreamMetadata, StreamAppend, StreamId, StreamMetadata,
};

pub(crate) use doubt::{FoundStored, LostStatement, StoredBy};

/// How much a command takes of the two bounds of the admission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// The number of events.
    pub events: usize,
    /// The memory that the events take, in bytes: payload, tags, names and what is stored with them. The backend's own
    /// form of the data is not included; the admission counts it once it has been made.
    pub bytes: usize,
}

/// A request under way. `T` is the ticket of the caller that waits for the answer; the sequencer only hands it back.
#[derive(Debug)]
pub struct Command<T> {
    pub(crate) ticket: T,
    pub(crate) parts: Vec<StreamPart>,
    /// What no event may be for the command to be stored.
    pub(crate) no_match: Option<Box<NoMatch>>,
    pub(crate) cost: Cost,
    pub(crate) arrived: Moment,
    /// The number of the command in the order of arrival.
    pub(crate) sequence: u64,
    /// The statements of the command whose outcomes are not known: while there are some, the command is in doubt.
    pub(crate) lost: Vec<LostStatement>,
    /// Where the events were found stored. The command is answered with the next commit, which proves that the events
    /// are durable.
    pub(crate) stored: Option<FoundStored>,
    /// Whether the command is registered as an attempt that retries wait for.
    pub(crate) registered: bool,
    /// Which attempt the command is, if a node makes several by itself.
    pub(crate) attempt: Attempt,
}

impl<T> Command<T> {
    /// Makes the command to append events.
    ///
    /// # Errors
    /// `InvalidArgument` if the request breaks a limit.
    pub fn append(ticket: T, request: Append, arrived: Moment) -> Result<Self> {
        Ok(Self::new(ticket, of_append(request)?, arrived))
    }

    /// Makes the command to append events whose ids the caller does not know, as if the store had made them. Such a
    /// command cannot be retried.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn append_with_ids_of_the_store(
        ticket: T,
        request: Append,
        arrived: Moment,
    ) -> Result<Self> {
        let mut wanted = of_append(request)?;
        for part in &mut wanted.parts {
            if let Change::Events { ids, .. } | Change::Lifecycle { ids, .. } = &mut part.change {
                *ids = IdSource::Store;
            }
        }
        Ok(Self::new(ticket, wanted, arrived))
    }

    /// Makes the command to append what the owner of a stream has decided. Without events the command confirms that the
    /// owner is up to date.
    ///
    /// # Errors
    /// `InvalidArgument` if the stream is a metadata stream or the events break a limit.
    pub fn owned(
        ticket: T,
        stream: StreamId,
        after: After,
        events: Vec<EventData>,
        arrived: Moment,
    ) -> Result<Self> {
        Ok(Self::new(ticket, of_owner(stream, after, events)?, arrived))
    }

    /// Makes the command to delete a stream. If an id is given, a retry with the same id is recognised.
    #[must_use]
    pub fn delete(ticket: T, request: DeleteStream, id: Option<EventId>, arrived: Moment) -> Self {
        Self::new(ticket, vec![of_delete(request, id)], arrived)
    }

    /// Makes the command to set the metadata of a stream. If an id is given, a retry with the same id is recognised.
    #[must_use]
    pub fn set_metadata(
        ticket: T,
        request: SetStreamMetadata,
        id: Option<EventId>,
        arrived: Moment,
    ) -> Self {
        Self::new(ticket, vec![of_set_metadata(request, id)], arrived)
    }

    /// Makes a command that has just arrived.
    pub(crate) fn new(ticket: T, wanted: impl Into<Wanted>, arrived: Moment) -> Self {
        let wanted = wanted.into();
        let cost = cost_of(&wanted);
        let Wanted { parts, no_match } = wanted;
        Self {
            ticket,
            parts,
            no_match,
            cost,
            arrived,
            sequence: 0,
            lost: Vec::new(),
            stored: None,
            registered: false,
            attempt: Attempt::Only,
        }
    }

    /// Says which attempt the command is.
    #[must_use]
    pub fn as_attempt(mut self, attempt: Attempt) -> Self {
        self.attempt = attempt;
        self
    }

    /// Returns whether the command only asks whether its claims hold.
    pub(crate) fn is_question(&self) -> bool {
        self.parts.iter().all(StreamPart::is_question)
    }
}

/// What a command wants done.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) parts: Vec<StreamPart>,
    /// What no event may be for it to be done.
    pub(crate) no_match: Option<Box<NoMatch>>,
}

impl From<Vec<StreamPart>> for Wanted {
    fn from(parts: Vec<StreamPart>) -> Self {
        Self {
            parts,
            no_match: None,
        }
    }
}

/// The condition that no event passes a filter, and what is known of it.
#[derive(Debug)]
pub(crate) struct NoMatch {
    pub(crate) filter: Arc<Filter>,
    /// Events up to here do not count.
    pub(crate) after: Option<Checkpoint>,
    /// What the database has said.
    pub(crate) known: Option<KnownOfMatch>,
    /// How far the newest events are compared.
    pub(crate) compared: Option<Compared>,
}

/// How far the newest events of a log, which are in memory, are compared with a filter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compared {
    /// The number of the state in which the events were compared. In another one, others may be in their place.
    pub(crate) revision: u64,
    /// No event passes up to here.
    pub(crate) none_until: Position,
}

/// What the database has said about the events that pass a filter. It stays true in one history of the log, for rows
/// that are committed do not change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownOfMatch {
    /// The number of the history that was looked at.
    pub(crate) history: u64,
    /// No event passes up to here.
    pub(crate) none_until: Position,
    /// The first event that passes; `None` if none was found.
    pub(crate) first: Option<Position>,
}

impl NoMatch {
    /// Returns how much memory the filter takes.
    fn bytes(&self) -> usize {
        let queries = self.filter.any_of.iter();
        let bytes = queries.map(|query| {
            let types = query.types.iter().map(|of| of.as_str().len());
            let tags = query.tags.iter().map(|tag| tag.as_str().len());
            let texts = query.stream_prefixes.iter().chain(&query.categories);
            let texts = types.chain(tags).chain(texts.map(String::len));
            texts.map(|len| len + size_of::<String>()).sum::<usize>() + size_of::<Query>()
        });
        bytes.sum()
    }
}

/// What a command asks of one stream.
#[derive(Debug)]
pub(crate) struct StreamPart {
    /// The stream. For a change of metadata it is the stream that the metadata describes.
    pub(crate) stream: StreamId,
    pub(crate) expected: ExpectedRevision,
    pub(crate) change: Change,
    /// The backend's own forms of the data, for the events that have one: the number of the event, counted from 0, and
    /// the form.
    pub(crate) packed: Vec<(usize, Bytes)>,
}

/// What a command asks to be done to a stream.
#[derive(Debug)]
pub(crate) enum Change {
    /// The command appends these events.
    Events {
        events: Vec<EventData>,
        ids: IdSource,
    },
    /// The command appends these events of the stream's owner if the owner is up to date. Without events it only
    /// confirms that the owner is up to date.
    Owned {
        after: After,
        events: Vec<EventData>,
    },
    /// The command changes nothing of the stream; its claim must hold for the other parts to be stored.
    Condition(About),
    /// The command records this change in the metadata stream.
    Lifecycle {
        kind: LifecycleChange,
        claim: About,
        metadata: StreamMetadata,
        id: EventId,
        ids: IdSource,
    },
}

/// What the claim of a condition, or of a lifecycle change, is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// The claim is about the events of the stream.
    Events,
    /// The claim is about the metadata of the stream.
    Metadata,
}

/// Who made the event ids of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdSource {
    /// The client made them, so a retry can be recognised.
    Client,
    /// The store made them, so nobody can retry.
    Store,
}

impl StreamPart {
    /// Lets the backend make its own form of the data.
    pub(crate) fn pack(&mut self, backend: &dyn Backend) {
        let (Change::Events { events, .. } | Change::Owned { events, .. }) = &self.change else {
            return;
        };
        let pack = |event: &EventData| backend.pack(&self.stream, event.content_type, &event.data);
        let packed = events.iter().enumerate();
        self.packed = packed
            .filter_map(|(number, event)| Some((number, pack(event)?)))
            .collect();
    }

    /// Returns how much memory the backend's forms of the data take beside the data, in bytes.
    pub(crate) fn packed_bytes(&self) -> usize {
        self.packed.iter().map(|(_, form)| form.len()).sum()
    }

    /// Returns the backend's form of the data of the event with this number, if there is one.
    pub(crate) fn packed(&self, number: usize) -> Option<Bytes> {
        let found = self
            .packed
            .binary_search_by_key(&number, |(number, _)| *number);
        found.ok().map(|index| self.packed[index].1.clone())
    }

    /// Returns whether the part only asks whether its claim holds.
    pub(crate) fn is_question(&self) -> bool {
        match &self.change {
            Change::Owned { events, .. } => events.is_empty(),
            Change::Condition(_) => true,
            Change::Events { .. } | Change::Lifecycle { .. } => false,
        }
    }

    /// Returns the id of the first event.
    pub(crate) fn first_id(&self) -> Option<EventId> {
        match &self.change {
            Change::Events { events, .. } | Change::Owned { events, .. } => {
                events.first().and_then(|event| event.id)
            }
            Change::Lifecycle { id, .. } => Some(*id),
            Change::Condition(_) => None,
        }
    }

    /// Returns the ids of all events.
    pub(crate) fn ids(&self) -> Vec<EventId> {
        match &self.change {
            Change::Events { events, .. } | Change::Owned { events, .. } => {
                events.iter().filter_map(|event| event.id).collect()
            }
            Change::Lifecycle { id, .. } => vec![*id],
            Change::Condition(_) => Vec::new(),
        }
    }

    pub(crate) fn ids_from(&self) -> IdSource {
        match &self.change {
            Change::Events { ids, .. } | Change::Lifecycle { ids, .. } => *ids,
            // An owner never sends events again, and a condition has none.
            Change::Owned { .. } | Change::Condition(_) => IdSource::Store,
        }
    }

    /// Returns the stream to which the events are appended, or which a condition is about.
    pub(crate) fn target(&self) -> StreamId {
        match &self.change {
            Change::Events { .. } | Change::Owned { .. } | Change::Condition(About::Events) => {
                self.stream.clone()
            }
            Change::Lifecycle { .. } | Change::Condition(About::Metadata) => {
                self.stream.metadata_stream()
            }
        }
    }

    pub(crate) fn event_types(&self) -> impl Iterator<Item = EventType> + '_ {
        let (events, own) = match &self.change {
            Change::Events { events, .. } | Change::Owned { events, .. } => {
                (events.as_slice(), None)
            }
            Change::Lifecycle { kind, .. } => (&[][..], Some(kind.event_type())),
            Change::Condition(_) => (&[][..], None),
        };
        events
            .iter()
            .map(|event| event.event_type.clone())
            .chain(own)
    }
}

/// Returns how much a command takes of the admission, without the forms that the backend makes of its data.
pub(crate) fn cost_of(wanted: &Wanted) -> Cost {
    let mut cost = Cost {
        events: 0,
        bytes: wanted.no_match.as_ref().map_or(0, |of| of.bytes()),
    };
    for part in &wanted.parts {
        match &part.change {
            Change::Events { events, .. } | Change::Owned { events, .. } => {
                cost.events += events.len();
                cost.bytes += events.iter().map(EventData::cost_bytes).sum::<usize>();
            }
            Change::Lifecycle { metadata, .. } => {
                cost.events += 1;
                cost.bytes += metadata.json().len();
            }
            Change::Condition(_) => {}
        }
        cost.bytes += part.stream.as_str().len();
    }
    cost
}

/// Makes the parts of an append.
///
/// # Errors
/// `InvalidArgument` if the request breaks a limit.
pub(crate) fn of_append(request: Append) -> Result<Wanted> {
    request.validate()?;
    let Append {
        streams,
        conditions,
    } = request;
    let mut parts: Vec<StreamPart> = streams.into_iter().map(of_stream).collect::<Result<_>>()?;
    let mut no_match = None;
    for condition in conditions {
        match condition {
            // Last, so that the parts which are stored are the first ones, in the order of the request.
            Condition::Stream { stream, expected } => {
                parts.extend(of_condition(stream, expected));
            }
            Condition::NoMatch { filter, after } => {
                let filter = Arc::new(filter);
                no_match = Some(Box::new(NoMatch {
                    filter,
                    after,
                    known: None,
                    compared: None,
                }));
            }
        }
    }
    Ok(Wanted { parts, no_match })
}

/// Makes the part of a condition on a stream; `None` if it holds always.
fn of_condition(stream: StreamId, expected: ExpectedRevision) -> Option<StreamPart> {
    let (stream, about) = match stream.described_stream() {
        Some(described) => (described, About::Metadata),
        None => (stream, About::Events),
    };
    (expected != ExpectedRevision::Any).then(|| StreamPart {
        stream,
        expected,
        change: Change::Condition(about),
        packed: Vec::new(),
    })
}

fn of_stream(append: StreamAppend) -> Result<StreamPart> {
    let StreamAppend {
        stream,
        expected,
        mut events,
    } = append;
    let ids = if events.iter().all(|event| event.id.is_some()) {
        IdSource::Client
    } else {
        IdSource::Store
    };
    if let Some(described) = stream.described_stream()
        && let Some(event) = events.first()
    {
        let (kind, metadata) = StreamMetadata::parse_event(event.data.clone())?;
        let id = event.id.unwrap_or_else(EventId::random);
        let change = Change::Lifecycle {
            kind,
            claim: About::Metadata,
            metadata,
            id,
            ids,
        };
        return Ok(StreamPart {
            stream: described,
            expected,
            change,
            packed: Vec::new(),
        });
    }
    for event in &mut events {
        event.id.get_or_insert_with(EventId::random);
    }
    Ok(StreamPart {
        stream,
        expected,
        change: Change::Events { events, ids },
        packed: Vec::new(),
    })
}

/// Makes the part for what an owner submits.
///
/// # Errors
/// `InvalidArgument` if the stream is a metadata stream or the events break a limit.
pub(crate) fn of_owner(
    stream: StreamId,
    after: After,
    mut events: Vec<EventData>,
) -> Result<Vec<StreamPart>> {
    if stream.described_stream().is_some() {
        return Err(Error::invalid(
            "stream",
            format!("{stream:?}: a metadata stream cannot be owned"),
        ));
    }
    let expected = match after {
        After::NoStream { .. } => ExpectedRevision::NoStream,
        After::Event(_) => ExpectedRevision::StreamExists,
    };
    if !events.is_empty() {
        let append = Append::to(stream.clone(), expected, events);
        append.validate()?;
        events = append
            .streams
            .into_iter()
            .flat_map(|part| part.events)
            .collect();
        for event in &mut events {
            event.id.get_or_insert_with(EventId::random);
        }
    }
    Ok(vec![StreamPart {
        stream,
        expected,
        change: Change::Owned { after, events },
        packed: Vec::new(),
    }])
}

/// Makes the part of a delete. `id` is the id of the event that records it, if the caller may retry.
pub(crate) fn of_delete(request: DeleteStream, id: Option<EventId>) -> StreamPart {
    let kind = match request.kind {
        DeleteKind::Soft => LifecycleChange::Deleted,
        DeleteKind::Tombstone => LifecycleChange::Tombstone,
    };
    let metadata = StreamMetadata::default();
    lifecycle(request.stream, request.expected, kind, metadata, id)
}

/// Makes the part of a change of metadata. `id` is the id of the event that records it, if the caller may retry.
pub(crate) fn of_set_metadata(request: SetStreamMetadata, id: Option<EventId>) -> StreamPart {
    let kind = LifecycleChange::Metadata;
    lifecycle(request.stream, request.expected, kind, request.metadata, id)
}

fn lifecycle(
    stream: StreamId,
    expected: ExpectedRevision,
    kind: LifecycleChange,
    metadata: StreamMetadata,
    id: Option<EventId>,
) -> StreamPart {
    let change = Change::Lifecycle {
        kind,
        claim: match kind {
            LifecycleChange::Metadata => About::Metadata,
            LifecycleChange::Deleted | LifecycleChange::Tombstone => About::Events,
        },
        metadata,
        id: id.unwrap_or_else(EventId::random),
        ids: match id {
            Some(_) => IdSource::Client,
            None => IdSource::Store,
        },
    };
    StreamPart {
        stream,
        expected,
        change,
        packed: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each event has the form that the backend has made of its own data, or none.
    #[test]
    fn a_packed_form_belongs_to_one_event() {
        let stream = StreamId::new("s").expect("valid");
        let event = || EventData::json(EventType::new("e").expect("valid"), "{}").without_id();
        let append = Append::to(
            stream,
            ExpectedRevision::Any,
            vec![event(), event(), event()],
        );
        let mut part = of_append(append).expect("valid").parts.remove(0);
        assert_eq!(part.packed(0), None);
        let form = |text| Bytes::from_static(text);
        part.packed = vec![(0, form(b"first")), (2, form(b"third"))];
        assert_eq!(part.packed(0), Some(form(b"first")));
        assert_eq!(part.packed(1), None);
        assert_eq!(part.packed(2), Some(form(b"third")));
    }

    /// Goal: a command costs what its events take, with the name of their stream.
    #[test]
    fn a_command_costs_its_events_and_names() {
        let stream = StreamId::new("stream").expect("valid");
        let event = EventData::json(EventType::new("e").expect("valid"), "{}").without_id();
        let bytes = event.cost_bytes() * 2 + "stream".len();
        let append = Append::to(stream.clone(), ExpectedRevision::Any, vec![event; 2]);
        let cost = cost_of(&of_append(append).expect("valid"));
        assert_eq!(cost, Cost { events: 2, bytes });
        let metadata = StreamMetadata::default();
        let bytes = metadata.json().len() + "stream".len();
        let request = SetStreamMetadata {
            stream,
            expected: ExpectedRevision::Any,
            metadata,
        };
        let cost = cost_of(&vec![of_set_metadata(request, None)].into());
        assert_eq!(cost, Cost { events: 1, bytes });
    }
}
