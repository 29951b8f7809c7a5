//! Requests and answers of [`EventStore`](crate::EventStore): one struct per call.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::checkpoint::{Checkpoint, reading_order};
use crate::error::{Error, Result};
use crate::event::{EventData, RecordedEvent};
use crate::filter::Filter;
use crate::ids::{LogId, Position, Revision, StreamId};
use crate::lifecycle::StreamMetadata;
use crate::limits;

/// A writer's claim about the state of a stream. An append is refused if its claim does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ExpectedRevision {
    /// The writer claims nothing.
    #[default]
    Any,
    /// The stream does not exist: it was never written, or it was soft-deleted.
    NoStream,
    /// The stream exists.
    StreamExists,
    /// The last event of the stream has this revision.
    Exact(Revision),
}

impl fmt::Display for ExpectedRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpectedRevision::Any => f.write_str("any"),
            ExpectedRevision::NoStream => f.write_str("no stream"),
            ExpectedRevision::StreamExists => f.write_str("stream exists"),
            ExpectedRevision::Exact(revision) => write!(f, "revision {revision}"),
        }
    }
}

/// Events for one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamAppend {
    /// Stream to append to.
    pub stream: StreamId,
    /// The writer's claim about the stream.
    pub expected: ExpectedRevision,
    /// The events in their order; at least one.
    pub events: Vec<EventData>,
}

/// What an append requires of what it does not write. It is decided together with the claims of the append, and
/// confirmed by the commit that stores the events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// A stream to which the append does not append is in this state. The stream must be of the same log.
    Stream {
        /// The stream. The condition on a metadata stream `$$name` is about the last revision of the metadata.
        stream: StreamId,
        /// Its state. [`ExpectedRevision::Any`] holds always.
        expected: ExpectedRevision,
    },
    /// No event of the log to which the append goes passes a filter after a checkpoint: the append condition of Dynamic
    /// Consistency Boundaries. So a decision that rests on what a read with this filter has shown is stored only if a
    /// read would still show the same.
    ///
    /// Every event counts that is stored, also if its stream was deleted since or metadata hide it, as long as
    /// scavenging has not removed it. Events of streams whose name begins with `$` do not count. Events of other logs
    /// do not count either: in a store with several logs, what belongs together has names that share a `{…}` part.
    NoMatch {
        /// What no event may be: at least one query, each of which sets a condition.
        filter: Filter,
        /// Events up to here do not count: the end of the read on which the decision rests. `None`: every event counts.
        after: Option<Checkpoint>,
    },
}

impl Condition {
    /// Makes the condition that the store has the history in which this checkpoint was made: nothing was lost or
    /// restored since, after which revisions and positions stand for other events. So a revision that the append claims
    /// is that of the event which the writer means.
    ///
    /// It is a [`NoMatch`](Self::NoMatch) with a filter that no event passes which counts. So no events are looked at,
    /// and on a store with users everybody may use it. If the store has another history, the append is refused as
    /// `InvalidCheckpoint`. The checkpoint is one of the logs, such as that of [`Appended`].
    ///
    /// ```
    /// # use gesta_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let store = gesta_memory::MemoryStore::new();
    /// let event = || EventData::new("item-added", &["book"]);
    /// let first = store.append_to("cart-1", ExpectedRevision::NoStream, [event()?]).await?;
    /// let after = ExpectedRevision::Exact(first.streams[0].last_revision);
    /// let mut append = Append::to(StreamId::new("cart-1")?, after, vec![event()?]);
    /// append.conditions.push(Condition::same_history(first.checkpoint));
    /// store.append(append).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn same_history(checkpoint: Checkpoint) -> Self {
        Self::NoMatch {
            filter: Filter::stream_prefix("$"),
            after: Some(checkpoint),
        }
    }

    /// Returns the stream that the condition is about, if it is about one.
    #[must_use]
    pub fn stream(&self) -> Option<&StreamId> {
        match self {
            Condition::Stream { stream, .. } => Some(stream),
            Condition::NoMatch { .. } => None,
        }
    }
}

/// One append: events for one or several streams of one log, stored whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Append {
    /// The events by stream: at least one stream, and no stream twice.
    pub streams: Vec<StreamAppend>,
    /// What must hold besides, of streams to which the append does not append, and of all events; at most one condition
    /// for a stream, and at most one [`Condition::NoMatch`]. The retry of an append that is stored is answered as the
    /// first time, whether its conditions still hold or not.
    pub conditions: Vec<Condition>,
}

impl Append {
    /// Makes an append to one stream.
    #[must_use]
    pub fn to(stream: StreamId, expected: ExpectedRevision, events: Vec<EventData>) -> Self {
        Self {
            streams: vec![StreamAppend {
                stream,
                expected,
                events,
            }],
            conditions: Vec::new(),
        }
    }

    /// Adds the condition that a stream to which the append does not append is in this state.
    #[must_use]
    pub fn provided_that(mut self, stream: StreamId, expected: ExpectedRevision) -> Self {
        let condition = Condition::Stream { stream, expected };
        self.conditions.push(condition);
        self
    }

    /// Adds the condition that no event of the log passes this filter after this checkpoint. See
    /// [`Condition::NoMatch`].
    #[must_use]
    pub fn provided_no_match(mut self, filter: Filter, after: Option<Checkpoint>) -> Self {
        self.conditions.push(Condition::NoMatch { filter, after });
        self
    }

    /// Returns all streams that the append names: those to which it appends, and those of its conditions.
    pub fn named_streams(&self) -> impl Iterator<Item = &StreamId> {
        let written = self.streams.iter().map(|append| &append.stream);
        written.chain(self.conditions.iter().filter_map(Condition::stream))
    }

    /// Returns the number of events in all streams.
    #[must_use]
    pub fn events(&self) -> usize {
        self.streams.iter().map(|s| s.events.len()).sum()
    }

    /// Returns the size of data and metadata of all events, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.streams
            .iter()
            .flat_map(|s| &s.events)
            .map(EventData::payload_bytes)
            .sum()
    }

    /// Checks every limit that does not depend on the state of a store.
    ///
    /// An append to a metadata stream `$$name` must be a single `$metadata` event. Other streams whose names start with
    /// `$` are open, except virtual streams and `$all`.
    ///
    /// # Errors
    /// `InvalidArgument` with the field and the rule that it breaks.
    pub fn validate(&self) -> Result<()> {
        if self.streams.is_empty() {
            return Err(Error::invalid("appends", "must not be empty"));
        }
        at_most("appends", self.streams.len(), limits::APPEND_STREAMS_MAX)?;
        at_most("events", self.events(), limits::APPEND_EVENTS_MAX)?;
        let mut named = HashSet::with_capacity(self.streams.len());
        for append in &self.streams {
            append.validate()?;
            if !named.insert(&append.stream) {
                return Err(Error::invalid(
                    "appends",
                    format!("name stream {:?} twice", append.stream),
                ));
            }
        }
        self.validate_conditions(named)?;
        at_most("events", self.payload_bytes(), limits::APPEND_BYTES_MAX).map_err(|_| {
            Error::invalid(
                "events",
                format!(
                    "must be at most {} bytes in total",
                    limits::APPEND_BYTES_MAX
                ),
            )
        })
    }
}

impl Append {
    /// Checks the conditions. `named` are the streams to which the append appends.
    fn validate_conditions<'a>(&'a self, mut named: HashSet<&'a StreamId>) -> Result<()> {
        let streams = self.streams.len() + self.conditions.len();
        if streams > limits::APPEND_STREAMS_MAX {
            let max = limits::APPEND_STREAMS_MAX;
            let rule = format!("must not bring the append above {max} streams, found {streams}");
            return Err(Error::invalid("conditions", rule));
        }
        let mut has_filter = false;
        for (number, condition) in self.conditions.iter().enumerate() {
            let wrong =
                |rule: String| Err(Error::invalid(format!("conditions[{number}].stream"), rule));
            let stream = match condition {
                Condition::Stream { stream, .. } => stream,
                Condition::NoMatch { filter, .. } => {
                    check_condition_filter(number, filter)?;
                    if std::mem::replace(&mut has_filter, true) {
                        let field = format!("conditions[{number}]");
                        let rule = "must not be a second filter: put the queries of both into one";
                        return Err(Error::invalid(field, rule));
                    }
                    continue;
                }
            };
            stream.refuse_if_virtual()?;
            if stream
                .described_stream()
                .is_some_and(|of| of.as_str().starts_with("$$"))
            {
                return wrong(format!(
                    "{stream:?}: a metadata stream has no metadata stream"
                ));
            }
            if self.streams.iter().any(|append| append.stream == *stream) {
                return wrong(format!(
                    "must be a stream to which the append does not append, found {stream:?}: its own expected revision \
                     says what it must be"
                ));
            }
            if !named.insert(stream) {
                return wrong(format!("must not stand twice, found {stream:?}"));
            }
        }
        Ok(())
    }
}

/// Checks the filter of a condition: it asks for something, and is not too long to be compared with every event.
fn check_condition_filter(number: usize, filter: &Filter) -> Result<()> {
    let field = format!("conditions[{number}].no_match");
    if filter.is_all() {
        let rule =
            "must have at least one query, each of which names types, tags, categories or prefixes";
        return Err(Error::invalid(field, rule));
    }
    at_most(&field, filter.any_of.len(), limits::CONDITION_QUERIES_MAX)?;
    filter.validate()
}

impl StreamAppend {
    fn validate(&self) -> Result<()> {
        if self.events.is_empty() {
            return Err(Error::invalid("events", "must not be empty"));
        }
        for (i, event) in self.events.iter().enumerate() {
            if event.payload_bytes() > limits::EVENT_BYTES_MAX {
                return Err(Error::invalid(
                    format!("events[{i}]"),
                    format!(
                        "must be at most {} bytes of data and metadata, found {}",
                        limits::EVENT_BYTES_MAX,
                        event.payload_bytes()
                    ),
                ));
            }
        }
        self.check_ids_differ()?;
        self.stream.refuse_if_reserved()?;
        if let Some(described) = self.stream.as_str().strip_prefix("$$") {
            let only = |rule: &str| {
                Err(Error::invalid(
                    "stream",
                    format!("{:?}: {rule}", self.stream),
                ))
            };
            if described.starts_with("$$") || described.is_empty() {
                return only("a metadata stream has no metadata stream");
            }
            let [event] = self.events.as_slice() else {
                return only("a metadata stream takes one event at a time");
            };
            if event.event_type.as_str() != "$metadata"
                || !event.metadata.is_empty()
                || !event.tags.is_empty()
            {
                return only(
                    "a metadata stream takes only events of type $metadata without metadata and tags",
                );
            }
            StreamMetadata::parse_event(event.data.clone())?;
        }
        Ok(())
    }

    /// Refuses an id that occurs twice among the events: the store could not tell a retry of one from the other.
    fn check_ids_differ(&self) -> Result<()> {
        if self.events.len() < 2 {
            return Ok(());
        }
        let mut ids = HashSet::with_capacity(self.events.len());
        for (i, event) in self.events.iter().enumerate() {
            if let Some(id) = event.id
                && !ids.insert(id)
            {
                return Err(Error::invalid(
                    format!("events[{i}].id"),
                    format!(
                        "must differ from those of the other events of the stream, found {id} twice"
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn at_most(field: &str, found: usize, max: usize) -> Result<()> {
    if found > max {
        return Err(Error::invalid(
            field,
            format!("must be at most {max}, found {found}"),
        ));
    }
    Ok(())
}

/// Where the events of one stream were stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppendedStream {
    /// Stream that was appended to.
    pub stream: StreamId,
    /// Revision of the first event of the append in this stream.
    pub first_revision: Revision,
    /// Revision of the last event of the append in this stream.
    pub last_revision: Revision,
    /// Position of the last event of the append in this stream.
    pub position: Position,
}

/// The answer to an append. A recognised retry gets the answer of the first time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appended {
    /// One entry per stream of the append, in the order of the request.
    pub streams: Vec<AppendedStream>,
    /// The log that holds the events.
    pub log: LogId,
    /// Position of the last event of the append.
    pub position: Position,
    /// A token of the log: the checkpoint right after the last event there, and at the start of every other log. A
    /// reader of all events that has got everything up to it has seen these events. One that resumes from it gets
    /// everything that was stored after them in their log, and, with several logs, the others from their start: what
    /// the appending process knows of other logs says nothing about what the reader has seen of them, so it skips
    /// nothing.
    pub checkpoint: Checkpoint,
}

/// Direction of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// The oldest event comes first.
    #[default]
    Forwards,
    /// The newest event comes first.
    Backwards,
}

/// Where the read of a stream begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamFrom {
    /// The read begins at the first readable event.
    Start,
    /// The read begins at this event, which is included. Backwards, a revision after the last one means the last one.
    Revision(Revision),
    /// A backwards read begins at the last event; a forwards read begins after it.
    End,
}

/// Request for one page of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadStream {
    /// Stream to read.
    pub stream: StreamId,
    /// Where the page begins.
    pub from: StreamFrom,
    /// Direction of the read.
    pub direction: Direction,
    /// Largest number of events in the page: 1 to 10,000.
    pub limit: usize,
}

impl ReadStream {
    /// Makes a request that reads forwards from the first event, with pages of at most 1,000 events.
    #[must_use]
    pub fn forwards(stream: StreamId) -> Self {
        Self {
            stream,
            from: StreamFrom::Start,
            direction: Direction::Forwards,
            limit: 1_000,
        }
    }

    /// Makes a request that reads backwards from the last event, with pages of at most 1,000 events.
    #[must_use]
    pub fn backwards(stream: StreamId) -> Self {
        Self {
            stream,
            from: StreamFrom::End,
            direction: Direction::Backwards,
            limit: 1_000,
        }
    }

    /// Sets where the page begins.
    #[must_use]
    pub fn from(mut self, from: StreamFrom) -> Self {
        self.from = from;
        self
    }

    /// Sets the largest number of events in the page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Checks the limit.
    ///
    /// # Errors
    /// `InvalidArgument` if the limit is not 1 to 10,000.
    pub fn validate(&self) -> Result<()> {
        check_limit(self.limit)
    }
}

fn check_limit(limit: usize) -> Result<()> {
    if (1..=limits::PAGE_EVENTS_MAX).contains(&limit) {
        return Ok(());
    }
    Err(Error::invalid(
        "limit",
        format!("must be 1 to {}, found {limit}", limits::PAGE_EVENTS_MAX),
    ))
}

/// One page of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamPage {
    /// The events, in the direction of the read.
    pub events: Vec<RecordedEvent>,
    /// Revision to continue from. Forwards it is always there, also at the end; backwards it is `None` once the first
    /// readable event was reached.
    pub next: Option<Revision>,
    /// True if the stream had no further events in this direction when the page was read.
    pub end: bool,
    /// Last revision of the stream when the page was read.
    pub last_revision: Revision,
}

/// Where the read of all events begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AllFrom {
    /// The read begins before the first event.
    Start,
    /// A forwards read begins after this place. A backwards read gives the events up to this place, newest first.
    Checkpoint(Checkpoint),
    /// The read begins after the last event.
    End,
}

/// Request for one page of all events. Logs are read one after the other, each in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadAll {
    /// The one log that is read; `None` reads all of them. The places of the other logs stay as they are in the
    /// checkpoint to continue from, and the end is that of this log.
    pub only: Option<LogId>,
    /// Where the page begins.
    pub from: AllFrom,
    /// Direction of the read.
    pub direction: Direction,
    /// Largest number of events in the page: 1 to 10,000.
    pub limit: usize,
    /// Conditions that the events must meet.
    pub filter: Filter,
}

impl ReadAll {
    /// Makes a request that reads forwards from the first event, with pages of at most 1,000 events and no filter.
    #[must_use]
    pub fn forwards() -> Self {
        Self {
            only: None,
            from: AllFrom::Start,
            direction: Direction::Forwards,
            limit: 1_000,
            filter: Filter::ALL,
        }
    }

    /// Makes a request that reads backwards from the last event, with pages of at most 1,000 events and no filter.
    #[must_use]
    pub fn backwards() -> Self {
        Self {
            from: AllFrom::End,
            direction: Direction::Backwards,
            ..Self::forwards()
        }
    }

    /// Sets where the page begins.
    #[must_use]
    pub fn from(mut self, from: AllFrom) -> Self {
        self.from = from;
        self
    }

    /// Sets the largest number of events in the page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the conditions that the events must meet.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Reads one log alone.
    #[must_use]
    pub fn only(mut self, log: LogId) -> Self {
        self.only = Some(log);
        self
    }

    /// Checks the limit and the filter.
    ///
    /// # Errors
    /// `InvalidArgument` if the limit is not 1 to 10,000, or if the filter has too many values.
    pub fn validate(&self) -> Result<()> {
        check_limit(self.limit)?;
        self.filter.validate()
    }

    /// Returns the logs that a page reads which begins at these positions, in the order in which it reads them
    /// forwards.
    ///
    /// # Errors
    /// `InvalidArgument` if the one log that is to be read is none of them.
    pub fn reading_order(
        &self,
        at: &[Position],
    ) -> Result<impl DoubleEndedIterator<Item = usize> + Send + use<>> {
        let only = self.only.map(|log| usize::from(log.0));
        match only {
            Some(log) if log >= at.len() => Err(Error::invalid(
                "only",
                format!(
                    "must be a log of the store, which has {}, found {log}",
                    at.len()
                ),
            )),
            _ => Ok(reading_order(at).filter(move |log| only.is_none_or(|only| only == *log))),
        }
    }
}

/// One page of all events. With a filter it may be short, even empty, before the end: the caller goes on until `end`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllPage {
    /// The events, in the direction of the read.
    pub events: Vec<RecordedEvent>,
    /// Checkpoint to continue from.
    pub next: Checkpoint,
    /// True if there were no further events in this direction when the page was read.
    pub end: bool,
}

/// Request for one page of stream names, in the binary order of the names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListStreams {
    /// Text with which the listed names start. Names that start with `$` are listed only if this text does too.
    pub prefix: String,
    /// Name after which the page begins; `None` begins at the first name.
    pub after: Option<StreamId>,
    /// Largest number of streams in the page: 1 to 10,000.
    pub limit: usize,
}

impl ListStreams {
    /// Checks the limit.
    ///
    /// # Errors
    /// `InvalidArgument` if the limit is not 1 to 10,000.
    pub fn validate(&self) -> Result<()> {
        check_limit(self.limit)
    }
}

/// A stream that exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamInfo {
    /// Name of the stream.
    pub stream: StreamId,
    /// Revision of the last event of the stream.
    pub last_revision: Revision,
}

/// One page of streams. It may be short when deleted streams were left out: the caller goes on until `next` is `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamsPage {
    /// The streams, in the binary order of their names.
    pub streams: Vec<StreamInfo>,
    /// Name after which the next page begins; `None` at the end.
    pub next: Option<StreamId>,
}

/// Whether a deleted stream may begin again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeleteKind {
    /// Readers no longer see the stream. A later append begins it again, with the next revision.
    #[default]
    Soft,
    /// The stream is closed for ever.
    Tombstone,
}

/// Request to delete a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteStream {
    /// Stream to delete.
    pub stream: StreamId,
    /// The writer's claim about the stream.
    pub expected: ExpectedRevision,
    /// Whether the stream may begin again later.
    pub kind: DeleteKind,
}

/// The answer to a delete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deleted {
    /// The log of the stream.
    pub log: LogId,
    /// Position of the event that records the change.
    pub position: Position,
    /// A token of the log, as [`Appended::checkpoint`]: the checkpoint right after the event that records the change.
    pub checkpoint: Checkpoint,
}

/// The answer to a change of metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetadataSet {
    /// The log of the stream.
    pub log: LogId,
    /// Position of the event that records the change.
    pub position: Position,
    /// A token of the log, as [`Appended::checkpoint`]: the checkpoint right after the event that records the change.
    pub checkpoint: Checkpoint,
}

/// Request to replace the metadata of a stream, which need not exist yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetStreamMetadata {
    /// The stream that the metadata describe.
    pub stream: StreamId,
    /// The claim about the last revision of the *metadata*, not of the stream.
    pub expected: ExpectedRevision,
    /// The new metadata.
    pub metadata: StreamMetadata,
}

impl SetStreamMetadata {
    /// Checks that a stream of this name can have metadata.
    ///
    /// # Errors
    /// `InvalidArgument` if the stream is `$all`, a virtual stream or a metadata stream.
    pub fn validate(&self) -> Result<()> {
        if self.stream.as_str().starts_with("$$") {
            let rule = format!(
                "{:?}: a metadata stream has no metadata stream",
                self.stream
            );
            return Err(Error::invalid("stream", rule));
        }
        self.stream.refuse_if_reserved()
    }
}

/// The metadata of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamMetadataRecord {
    /// The metadata; empty if none were set.
    pub metadata: StreamMetadata,
    /// Last revision of the metadata stream; `None` if none were set.
    pub revision: Option<Revision>,
}

/// What a subscription reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscribeTo {
    /// One stream, which need not exist yet.
    Stream(StreamId),
    /// All events that pass the filter.
    All(Filter),
}

/// Where a subscription begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubscribeFrom {
    /// The subscription begins before the first event.
    Start,
    /// The subscription begins after this revision. Only a subscription to one stream can begin so.
    Revision(Revision),
    /// The subscription begins after this place.
    Checkpoint(Checkpoint),
    /// The subscription delivers only events that are stored from now on.
    End,
}

/// Request for a subscription, an endless read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscribe {
    /// What the subscription reads.
    pub to: SubscribeTo,
    /// Where the subscription begins.
    pub from: SubscribeFrom,
}

impl Subscribe {
    /// Checks the filter, and that `from` fits `to`.
    ///
    /// # Errors
    /// `InvalidArgument` if the filter has too many values, or if a subscription to all events begins after a revision.
    pub fn validate(&self) -> Result<()> {
        match (&self.to, &self.from) {
            (SubscribeTo::All(_), SubscribeFrom::Revision(_)) => Err(Error::invalid(
                "after",
                "must be a checkpoint, not a revision, for all events",
            )),
            (SubscribeTo::All(filter), _) => filter.validate(),
            (SubscribeTo::Stream(_), _) => Ok(()),
        }
    }
}

/// A recorded event that many subscribers share.
pub type SharedEvent = Arc<RecordedEvent>;
