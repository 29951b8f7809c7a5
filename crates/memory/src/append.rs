//! Appends, deletes and changes of metadata. Every check comes first, then the events are stored, under one lock.

use gesta_core::{
    Append, AppendedStream, Checkpoint, Condition, DeleteKind, DeleteStream, Error, ErrorKind,
    EventData, ExpectedRevision, Filter, Lifecycle, LifecycleChange, LogId, Position, Result,
    Revision, SetStreamMetadata, SharedEvent, StreamAppend, StreamId, StreamMetadata, Timestamp,
};

use crate::state::{State, Stream};

/// Result of checking one stream's part of an append.
enum Expectation {
    /// The expectation holds: the events must be stored.
    Fresh,
    /// The events were stored before, from this index of the stream on.
    Retry { first: usize },
}

/// The place of an append that was stored, now or the first time.
pub(crate) struct Stored {
    pub(crate) log: LogId,
    pub(crate) position: Position,
    pub(crate) streams: Vec<AppendedStream>,
}

impl State {
    pub(crate) fn append(&mut self, request: Append, now: Timestamp) -> Result<Stored> {
        request.validate()?;
        let log = self.common_log(&request)?;
        let expectations = request
            .streams
            .iter()
            .map(|part| self.judge(part))
            .collect::<Result<Vec<Expectation>>>()?;
        let retries = expectations
            .iter()
            .filter(|expectation| matches!(expectation, Expectation::Retry { .. }));
        let retries = retries.count();
        if (1..expectations.len()).contains(&retries) {
            return Err(self.mixture(&request, &expectations));
        }
        if retries == 0 {
            let mut conditions = request.conditions.iter();
            // Conditions on streams come first, as claims do.
            conditions
                .clone()
                .try_for_each(|condition| match condition {
                    Condition::Stream { stream, expected } => self.check_state(stream, *expected),
                    Condition::NoMatch { .. } => Ok(()),
                })?;
            conditions.try_for_each(|condition| match condition {
                Condition::Stream { .. } => Ok(()),
                Condition::NoMatch { filter, after } => {
                    self.check_no_match(filter, after.as_ref(), log)
                }
            })?;
        }

        let mut streams = Vec::with_capacity(request.streams.len());
        for (part, expectation) in request.streams.into_iter().zip(expectations) {
            let count = part.events.len();
            let first = match expectation {
                Expectation::Retry { first } => first,
                Expectation::Fresh => self.store(&part.stream, part.events, now)?,
            };
            streams.push(self.answer(part.stream, first, count)?);
        }
        let position = streams.iter().map(|s| s.position).max().unwrap_or_default();
        Ok(Stored {
            log,
            position,
            streams,
        })
    }

    fn common_log(&self, request: &Append) -> Result<LogId> {
        let mut logs = request.named_streams().map(|stream| self.log_of(stream));
        let first = logs.next().unwrap_or_default();
        if logs.all(|log| log == first) {
            return Ok(first);
        }
        Err(Error::invalid(
            "appends",
            "must name streams of one log; names that share a {…} part do",
        ))
    }

    fn check_no_match(
        &self,
        filter: &Filter,
        after: Option<&Checkpoint>,
        log: LogId,
    ) -> Result<()> {
        let number = usize::from(log.0);
        let events = self.log(log);
        let mut begin = Position::START;
        if let Some(after) = after {
            let logs = u16::try_from(self.logs.len()).unwrap_or(u16::MAX);
            let positions = after.positions_for(self.incarnation, logs)?;
            begin = positions.get(number).copied().unwrap_or_default();
            let end = events.last().map_or(Position::START, |last| last.position);
            if begin > end {
                let text = format!("position {begin} of log {number} is above its end {end}");
                return Err(ErrorKind::InvalidCheckpoint(text).into());
            }
        }
        let counts = |event: &&SharedEvent| event.position > begin && !event.stream.is_system();
        let mut events = events.iter().filter(counts);
        match events.find(|event| filter.matches(event)) {
            None => Ok(()),
            Some(event) => Err(ErrorKind::ConditionFailed {
                log,
                position: event.position,
            }
            .into()),
        }
    }

    fn check_state(&self, stream: &StreamId, expected: ExpectedRevision) -> Result<()> {
        if expected == ExpectedRevision::Any {
            return Ok(());
        }
        if let Some(described) = stream.described_stream() {
            self.lifecycle_unless_tombstoned(&described)?;
        }
        let lifecycle = self.lifecycle_unless_tombstoned(stream)?;
        let last = self.last(stream);
        match expectation_holds(expected, last, &lifecycle) {
            true => Ok(()),
            false => Err(wrong(stream, expected, last, &lifecycle)),
        }
    }

    /// Compares one part of an append with the stream that it is for.
    fn judge(&self, part: &StreamAppend) -> Result<Expectation> {
        if let Some(described) = part.stream.described_stream() {
            self.lifecycle_unless_tombstoned(&described)?;
        }
        let lifecycle = self.lifecycle_unless_tombstoned(&part.stream)?;
        let stream = self.streams.get(&part.stream);
        let last = stream.and_then(Stream::last);
        let holds = expectation_holds(part.expected, last, &lifecycle);
        let has_ids = part.events.iter().all(|event| event.id.is_some());
        if let Some(stream) = stream.filter(|_| has_ids && lifecycle.deleted_before > Revision(0)) {
            refuse_if_deleted(stream, part, lifecycle.deleted_before)?;
        }
        // Where the events would be if this is a retry.
        let first = match part.expected {
            _ if !has_ids => None,
            ExpectedRevision::Any => newest(stream, part),
            ExpectedRevision::StreamExists if holds => newest(stream, part),
            _ if holds || !lifecycle.exists(last) => None,
            ExpectedRevision::Exact(revision) => index(revision.next()),
            ExpectedRevision::NoStream => index(lifecycle.deleted_before),
            ExpectedRevision::StreamExists => None,
        };
        match first {
            Some(first) if stream.is_some_and(|s| carries_ids(s, first, &part.events)) => {
                return Ok(Expectation::Retry { first });
            }
            // Found by its id, but what follows is something else.
            Some(_) => {}
            None if holds => return Ok(Expectation::Fresh),
            None => {}
        }
        Err(wrong(&part.stream, part.expected, last, &lifecycle))
    }

    /// Makes the error for an append of which some parts are stored and others are not: it is no retry, and it cannot
    /// be stored.
    fn mixture(&self, request: &Append, expectations: &[Expectation]) -> Error {
        let retry = request
            .streams
            .iter()
            .zip(expectations)
            .find(|(_, expectation)| matches!(expectation, Expectation::Retry { .. }));
        let Some((part, _)) = retry else {
            return Error::invalid("appends", "must not be empty");
        };
        let lifecycle = self.lifecycle(&part.stream).unwrap_or_default();
        wrong(
            &part.stream,
            part.expected,
            self.last(&part.stream),
            &lifecycle,
        )
    }

    /// Stores events, and returns the index of the first in its stream.
    fn store(
        &mut self,
        stream: &StreamId,
        events: Vec<EventData>,
        now: Timestamp,
    ) -> Result<usize> {
        let first = self.streams.get(stream).map_or(0, |s| s.events.len());
        for event in events {
            let event = match stream.described_stream() {
                Some(described) => self.with_system_state(&described, &event)?,
                None => event,
            };
            self.push(stream, event, now);
        }
        Ok(first)
    }

    /// Completes a user's metadata event by the state that only the store may write.
    fn with_system_state(&self, described: &StreamId, event: &EventData) -> Result<EventData> {
        let (change, metadata) = StreamMetadata::parse_event(event.data.clone())?;
        let mut state = Lifecycle {
            metadata,
            ..self.lifecycle(described)?
        };
        if change == LifecycleChange::Deleted {
            state.deleted_before = self.last(described).map_or(Revision(0), Revision::next);
        }
        Ok(EventData {
            id: event.id,
            ..state.to_event(change)
        })
    }

    fn answer(&self, stream: StreamId, first: usize, count: usize) -> Result<AppendedStream> {
        let events = self.streams.get(&stream).map_or(&[][..], |s| &s.events);
        let stored = events.get(first).zip(events.get(first + count - 1));
        let (first, last) = stored.ok_or_else(|| Error::corrupt("an append is not stored"))?;
        Ok(AppendedStream {
            stream,
            first_revision: first.revision,
            last_revision: last.revision,
            position: last.position,
        })
    }

    pub(crate) fn delete(
        &mut self,
        request: &DeleteStream,
        now: Timestamp,
    ) -> Result<(LogId, Position)> {
        let stream = &request.stream;
        refuse_kept_stream(stream)?;
        let lifecycle = self.lifecycle_unless_tombstoned(stream)?;
        let last = self.last(stream);
        if !expectation_holds(request.expected, last, &lifecycle) {
            return Err(wrong(stream, request.expected, last, &lifecycle));
        }
        let (state, change) = match request.kind {
            DeleteKind::Soft
                if !lifecycle.exists(last) && !self.has_metadata_alone(request, last) =>
            {
                return Err(ErrorKind::StreamNotFound(stream.clone()).into());
            }
            DeleteKind::Soft => (
                Lifecycle {
                    deleted_before: last.map_or(Revision(0), Revision::next),
                    ..Lifecycle::default()
                },
                LifecycleChange::Deleted,
            ),
            DeleteKind::Tombstone => (
                Lifecycle {
                    tombstoned: true,
                    metadata: StreamMetadata::default(),
                    ..lifecycle
                },
                LifecycleChange::Tombstone,
            ),
        };
        let meta = stream.metadata_stream();
        self.push(&meta, state.to_event(change), now);
        let log = self.log_of(&meta);
        Ok((log, self.heads()[usize::from(log.0)]))
    }

    /// Returns true if a delete expects no stream, and there is none but its metadata.
    fn has_metadata_alone(&self, request: &DeleteStream, last: Option<Revision>) -> bool {
        request.expected == ExpectedRevision::NoStream
            && last.is_none()
            && self.last(&request.stream.metadata_stream()).is_some()
    }

    pub(crate) fn set_metadata(
        &mut self,
        request: SetStreamMetadata,
        now: Timestamp,
    ) -> Result<(LogId, Position)> {
        request.validate()?;
        let event = Lifecycle {
            metadata: request.metadata,
            ..Lifecycle::default()
        }
        .to_event(LifecycleChange::Metadata);
        let append = Append::to(
            request.stream.metadata_stream(),
            request.expected,
            vec![event],
        );
        let stored = self.append(append, now)?;
        Ok((stored.log, stored.position))
    }
}

/// Refuses events that were stored in the stream before its last delete, at the place where the claim puts them or at
/// any other.
fn refuse_if_deleted(stream: &Stream, part: &StreamAppend, deleted_before: Revision) -> Result<()> {
    let at = match part.expected {
        ExpectedRevision::Exact(revision) if stream.last() > Some(revision) => {
            index(revision.next()).filter(|first| carries_ids(stream, *first, &part.events))
        }
        _ => None,
    };
    let Some(first) = at.or_else(|| newest(Some(stream), part)) else {
        return Ok(());
    };
    let stored = stream.events.get(first..).unwrap_or_default();
    let count = match carries_ids(stream, first, &part.events) {
        true => part.events.len(),
        false => 1,
    };
    match stored.first().zip(stored.get(count - 1)) {
        Some((first, last)) if first.revision < deleted_before => {
            Err(ErrorKind::StoredAndDeleted {
                stream: part.stream.clone(),
                position: last.position,
            }
            .into())
        }
        _ => Ok(()),
    }
}

/// Tells whether an expectation holds, by the table of the contract.
fn expectation_holds(
    expected: ExpectedRevision,
    last: Option<Revision>,
    lifecycle: &Lifecycle,
) -> bool {
    match expected {
        ExpectedRevision::Any => true,
        ExpectedRevision::NoStream => !lifecycle.exists(last),
        ExpectedRevision::StreamExists => lifecycle.exists(last),
        ExpectedRevision::Exact(revision) => last == Some(revision),
    }
}

/// Returns true if the events of the stream from `first` on carry the ids of `events`.
fn carries_ids(stream: &Stream, first: usize, events: &[EventData]) -> bool {
    let stored = stream.events.get(first..).unwrap_or_default();
    stored.len() >= events.len()
        && stored
            .iter()
            .zip(events)
            .all(|(stored, event)| event.id == Some(stored.id))
}

/// Returns the index of the newest event that has the id of the first event of this part.
fn newest(stream: Option<&Stream>, part: &StreamAppend) -> Option<usize> {
    let id = part.events.first()?.id?;
    stream?.newest.get(&id).copied()
}

fn index(revision: Revision) -> Option<usize> {
    usize::try_from(revision.0).ok()
}

fn wrong(
    stream: &StreamId,
    expected: ExpectedRevision,
    last: Option<Revision>,
    lifecycle: &Lifecycle,
) -> Error {
    ErrorKind::WrongExpectedRevision {
        stream: stream.clone(),
        expected,
        actual: last.filter(|_| lifecycle.exists(last)),
    }
    .into()
}

/// Refuses metadata streams and virtual streams, which cannot be deleted.
fn refuse_kept_stream(stream: &StreamId) -> Result<()> {
    if stream.as_str().starts_with("$$") {
        return Err(Error::invalid(
            "stream",
            format!("{stream:?}: a metadata stream has no metadata stream"),
        ));
    }
    stream.refuse_if_virtual()
}
