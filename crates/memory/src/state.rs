//! The stored events: those of each log, and per stream the same events again.
//!
//! Invariants: the event at index `i` of a log has position `i + 1`; the event at index `i` of a
//! stream has revision `i`; `created` never decreases within a log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gesta_core::{
    Error, ErrorKind, EventData, EventId, Incarnation, Lifecycle, LogId, Position, RecordedEvent,
    Result, Revision, SharedEvent, StreamId, Timestamp, log_of,
};

/// One stream, with every event that was ever appended to it.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) events: Vec<SharedEvent>,
    /// For each id, the index of the newest event that carries it.
    pub(crate) newest: HashMap<EventId, usize>,
}

impl Stream {
    pub(crate) fn last(&self) -> Option<Revision> {
        self.events.last().map(|event| event.revision)
    }
}

/// The content of the whole store.
pub(crate) struct State {
    pub(crate) logs: Vec<Vec<SharedEvent>>,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) closed: bool,
    pub(crate) incarnation: Incarnation,
}

impl State {
    pub(crate) fn new(logs: u16, incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            logs: vec![Vec::new(); usize::from(logs)],
            streams: BTreeMap::new(),
            closed: false,
        }
    }

    /// Returns the same state, or `Unavailable` after the store was shut down.
    pub(crate) fn open(&mut self) -> Result<&mut Self> {
        if self.closed {
            return Err(Error::unavailable("the store was shut down"));
        }
        Ok(self)
    }

    pub(crate) fn log_of(&self, stream: &StreamId) -> LogId {
        log_of(
            stream,
            u16::try_from(self.logs.len()).unwrap_or(gesta_core::limits::LOGS_MAX),
        )
    }

    pub(crate) fn log(&self, log: LogId) -> &[SharedEvent] {
        self.logs.get(usize::from(log.0)).map_or(&[], Vec::as_slice)
    }

    /// Returns the last position of each log.
    pub(crate) fn heads(&self) -> Vec<Position> {
        self.logs
            .iter()
            .map(|log| log.last().map_or(Position::START, |event| event.position))
            .collect()
    }

    /// Returns the last revision of a stream, whether the stream was deleted or not.
    pub(crate) fn last(&self, stream: &StreamId) -> Option<Revision> {
        if stream.is_virtual() {
            return self.links(stream).last().map(|link| link.revision);
        }
        self.streams.get(stream).and_then(Stream::last)
    }

    /// Reads the state of a stream from the last event of its metadata stream.
    pub(crate) fn lifecycle(&self, stream: &StreamId) -> Result<Lifecycle> {
        let meta = self.streams.get(&stream.metadata_stream());
        meta.and_then(|meta| meta.events.last())
            .map_or(Ok(Lifecycle::default()), |event| {
                Lifecycle::from_event(&event.data, &event.metadata)
            })
    }

    /// Reads the state of a stream as [`lifecycle`](Self::lifecycle) does. A tombstone is an error.
    pub(crate) fn lifecycle_unless_tombstoned(&self, stream: &StreamId) -> Result<Lifecycle> {
        let lifecycle = self.lifecycle(stream)?;
        if lifecycle.tombstoned {
            return Err(ErrorKind::StreamTombstoned(stream.clone()).into());
        }
        Ok(lifecycle)
    }

    /// Stores one event at the end of its stream and log.
    pub(crate) fn push(&mut self, stream: &StreamId, event: EventData, now: Timestamp) {
        let log = self.log_of(stream);
        let end = self.log(log).last();
        let recorded = RecordedEvent {
            stream: stream.clone(),
            revision: self.last(stream).map_or(Revision(0), Revision::next),
            log,
            position: end.map_or(Position::START, |end| end.position).next(),
            id: event.id.unwrap_or_else(EventId::random),
            event_type: event.event_type,
            created: end.map_or(now, |end| end.created.max(now)),
            content_type: event.content_type,
            data: event.data,
            metadata: event.metadata,
            tags: event.tags,
        };
        self.insert(Arc::new(recorded));
    }

    /// Adds an event that is known to follow the others.
    fn insert(&mut self, event: SharedEvent) {
        let stream = self.streams.entry(event.stream.clone()).or_default();
        stream.newest.insert(event.id, stream.events.len());
        stream.events.push(Arc::clone(&event));
        if let Some(log) = self.logs.get_mut(usize::from(event.log.0)) {
            log.push(event);
        }
    }

    /// Adds an event of an earlier life of the store.
    ///
    /// # Errors
    /// `Corrupt` if the event does not follow the others.
    pub(crate) fn restore(&mut self, event: RecordedEvent) -> Result<()> {
        let end = self.log(event.log).last();
        let follows = event.log == self.log_of(&event.stream)
            && event.position == end.map_or(Position::START, |end| end.position).next()
            && end.is_none_or(|end| end.created <= event.created)
            && event.revision == self.last(&event.stream).map_or(Revision(0), Revision::next);
        if !follows {
            return Err(Error::corrupt(format!(
                "event {} of stream {} at position {} of log {} does not follow the others",
                event.revision, event.stream, event.position, event.log
            )));
        }
        self.insert(Arc::new(event));
        Ok(())
    }
}
