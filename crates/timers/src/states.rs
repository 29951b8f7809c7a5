//! The stream of states: what the owner has done, and that it lives.
//!
//! Invariants: each state is appended under the revision of the one before. Both streams are cut by one append, which
//! is stored only if the state that makes it right is still the last one: after a loss it is not. Both streams lie in
//! one log, so what is lost of one is never older than what is left of the other.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Append, BackOff, Condition, ErrorKind, EventData, EventId, EventStore, EventType,
    ExpectedRevision, ReadStream, RecordedEvent, Result, Revision, StreamAppend, StreamFrom,
    StreamId, StreamMetadata, Subscription,
};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::record::{self, Kept, STATE, State, Through, What};
use crate::requests::{ERROR_CHARS_MAX, follow, json};

/// The number of events that are read at once.
const PAGE: usize = 1_000;
/// The pauses between the attempts to append a state.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The stream of states.
#[derive(Clone)]
pub(crate) struct States {
    store: Arc<dyn EventStore>,
    pub(crate) stream: StreamId,
    event_type: EventType,
}

/// The type of an event that sets the metadata of a stream.
const METADATA: &str = "$metadata";

/// The last state.
#[derive(Debug)]
pub(crate) enum Last {
    /// There never was one.
    None,
    /// It cannot be read: metadata hide it, it was removed, or somebody else wrote it.
    Hidden(Revision),
    /// It is this one.
    State(Revision, State),
}

impl Last {
    /// Returns its revision.
    pub(crate) fn revision(&self) -> Option<Revision> {
        match self {
            Last::None => None,
            Last::Hidden(revision) | Last::State(revision, _) => Some(*revision),
        }
    }
}

/// What all states together say.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// The timers that were pending when they were last stored together, and after which request that was.
    pub(crate) kept: Vec<Kept>,
    pub(crate) through: Option<Through>,
    /// After which request none was pending, if that was later.
    pub(crate) settled: Option<Through>,
    /// The timers that have fired since.
    pub(crate) fired: HashSet<EventId>,
    /// The number of states.
    pub(crate) events: u64,
    /// Whether the first states cannot be read, though no owner has cut them.
    pub(crate) is_cut_by_others: bool,
}

impl Stored {
    /// Returns after which request the timers were stored last.
    pub(crate) fn last(&self) -> Option<Through> {
        self.settled.or(self.through)
    }

    /// Nothing was pending after this request. What was asked until then is read again from where it begins, because it
    /// says which requests are out of date.
    fn settle(&mut self, through: Option<Through>) {
        self.kept.clear();
        self.fired.clear();
        self.settled = through;
        let is_before = |from: &Through| through.is_some_and(|it| from.revision <= it.revision);
        self.through = self.through.filter(is_before);
    }
}

/// Reads a state. One that cannot be read is no owner's: it is told of, and stops nobody.
fn readable(event: &RecordedEvent) -> Option<State> {
    match record::read(event) {
        Ok(state) => Some(state),
        Err(error) => {
            let error: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
            tracing::warn!(timers = %event.stream, error, "a state of timers is passed over: who may append to its stream?");
            None
        }
    }
}

impl States {
    pub(crate) fn new(store: Arc<dyn EventStore>, stream: StreamId) -> Result<Self> {
        Ok(Self {
            store,
            stream,
            event_type: EventType::new(STATE)?,
        })
    }

    /// Returns the last state.
    pub(crate) async fn last(&self) -> Result<Last> {
        let request = ReadStream::backwards(self.stream.clone()).limit(1);
        let page = match self.store.read_stream(request).await {
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                return Ok(Last::None);
            }
            page => page?,
        };
        match page.events.first() {
            Some(event) => Ok(match readable(event) {
                Some(state) => Last::State(event.revision, state),
                None => Last::Hidden(event.revision),
            }),
            None => Ok(Last::Hidden(page.last_revision)),
        }
    }

    /// Follows the states after a revision.
    pub(crate) async fn follow(&self, after: Option<Revision>) -> Result<Subscription> {
        follow(&*self.store, &self.stream, after).await
    }

    /// Reads the states up to a revision, or all. An owner reads up to the one by which it has claimed: it goes on to
    /// say that it lives, and would read that as well, without end if reads are slow. What was stored after a request
    /// that is lost counts for nothing.
    pub(crate) async fn read(
        &self,
        to: Option<Revision>,
        lost: &HashSet<Through>,
    ) -> Result<Stored> {
        let is_lost = |through: &Option<Through>| through.is_some_and(|it| lost.contains(&it));
        let mut stored = Stored::default();
        let mut parts: Vec<Kept> = Vec::new();
        let mut expected = 0;
        let mut from = StreamFrom::Start;
        loop {
            let request = ReadStream::forwards(self.stream.clone())
                .from(from)
                .limit(PAGE);
            let page = match self.store.read_stream(request).await {
                Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => break,
                page => page?,
            };
            for event in &page.events {
                stored.events += 1;
                let Some(state) = readable(event) else {
                    continue;
                };
                if stored.events == 1 {
                    let is_whole = matches!(state.does, What::Kept { part: 0, .. });
                    stored.is_cut_by_others = event.revision > Revision(0) && !is_whole;
                }
                match state.does {
                    What::Owned => {}
                    What::Idle { through } | What::Kept { through, .. } if is_lost(&through) => {}
                    What::Idle { through } => stored.settle(through),
                    What::Fired { ids } => stored.fired.extend(ids.into_iter().map(EventId)),
                    What::Kept {
                        part,
                        of,
                        through,
                        timers,
                    } => {
                        if part == 0 {
                            (parts, expected) = (Vec::new(), 0);
                        }
                        if part != expected {
                            // Its beginning was cut off.
                            continue;
                        }
                        parts.extend(timers);
                        expected += 1;
                        if expected == of {
                            stored.kept = std::mem::take(&mut parts);
                            (stored.through, stored.settled) = (through, None);
                            stored.fired.clear();
                            expected = 0;
                        }
                    }
                }
            }
            match page.next {
                Some(next) if !page.end && to.is_none_or(|to| next <= to) => {
                    from = StreamFrom::Revision(next)
                }
                _ => break,
            }
        }
        Ok(stored)
    }

    /// Appends a state after the last one, and returns its revision; `None` if another process has appended meanwhile.
    /// While the store is away it is tried again, within this time.
    pub(crate) async fn append(
        &self,
        after: Option<Revision>,
        state: &State,
        within: Duration,
    ) -> Result<Option<Revision>> {
        let expected = after.map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        let event = json(&self.event_type, state)?;
        let append = Append::to(self.stream.clone(), expected, vec![event]);
        let (begun, mut back_off) = (Instant::now(), BackOff::new(PAUSES.0, PAUSES.1));
        loop {
            // The same id each time: what was stored is recognised.
            match self.store.append(append.clone()).await {
                Ok(appended) => {
                    let mut streams = appended.streams.iter();
                    return Ok(streams.next().map(|stream| stream.last_revision));
                }
                Err(error) => match error.kind() {
                    ErrorKind::WrongExpectedRevision { .. } => return Ok(None),
                    ErrorKind::Unavailable(_)
                    | ErrorKind::Overloaded(_)
                    | ErrorKind::OutcomeUnknown(_)
                        if begun.elapsed() < within => {}
                    _ => return Err(error),
                },
            }
            tokio::time::sleep(back_off.pause()).await;
        }
    }

    /// Lets what stands before these revisions of both streams be scavenged, provided that `last` is the last state.
    /// What else the metadata of the streams say is kept. What was cut before is not readable again: a process that
    /// stood still may come with an older revision.
    pub(crate) async fn cut(&self, cuts: &[(&StreamId, Revision)], last: Revision) -> Result<()> {
        let mut streams = Vec::new();
        for (stream, before) in cuts {
            streams.extend(self.cut_of(stream, *before).await?);
        }
        if streams.is_empty() {
            return Ok(());
        }
        let is_last = Condition::Stream {
            stream: self.stream.clone(),
            expected: ExpectedRevision::Exact(last),
        };
        let append = Append {
            streams,
            conditions: vec![is_last],
        };
        self.store.append(append).await.map(drop)
    }

    /// Returns what cuts a stream, unless it is cut there or later.
    async fn cut_of(&self, stream: &StreamId, before: Revision) -> Result<Option<StreamAppend>> {
        let known = self.store.stream_metadata(stream.clone()).await?;
        if known.metadata.truncate_before >= Some(before) {
            return Ok(None);
        }
        let mut document: Map<String, Value> = serde_json::from_slice(known.metadata.json())
            .map_err(|error| gesta_core::Error::corrupt(error.to_string()))?;
        document.insert("$tb".to_owned(), before.0.into());
        let metadata = StreamMetadata::parse(Value::Object(document).to_string())?;
        let event = EventData::json(EventType::new(METADATA)?, metadata.json().clone());
        let expected = known
            .revision
            .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        Ok(Some(StreamAppend {
            stream: stream.metadata_stream(),
            expected,
            events: vec![event.with_id(EventId::random())],
        }))
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::{EventStoreExt, SetStreamMetadata};
    use gesta_testkit::faulty::World;

    use super::*;

    /// Goal: what was cut is not readable again, whoever comes late with an older place; other metadata stay. Nothing
    /// is cut unless the last state is the one that is named.
    #[tokio::test(start_paused = true)]
    async fn a_stream_is_never_cut_less_than_it_was() {
        let world = World::new(1);
        let store: Arc<dyn EventStore> = world.store().share();
        let [stream, other] = ["a", "b"].map(|name| StreamId::new(name).unwrap());
        let of_type = EventType::new("b").unwrap();
        for name in [&stream, &other] {
            let event = |_| EventData::json(of_type.clone(), "1");
            let events: Vec<_> = (0..9).map(event).collect();
            let appended = store.append_to(name.as_str(), ExpectedRevision::Any, events);
            appended.await.unwrap();
        }
        let request = SetStreamMetadata {
            stream: stream.clone(),
            expected: ExpectedRevision::NoStream,
            metadata: StreamMetadata::parse(r#"{"$tb":2,"own":true}"#).unwrap(),
        };
        store.set_stream_metadata(request).await.unwrap();
        let states = States::new(Arc::clone(&store), stream.clone()).unwrap();
        for (before, cut, last, is_last) in [
            (5, 5, 8, true),
            (3, 5, 8, true),
            (5, 5, 8, true),
            (6, 5, 7, false),
            (6, 5, 9, false),
            (6, 6, 8, true),
        ] {
            let cuts = [(&stream, Revision(before)), (&other, Revision(before))];
            let done = states.cut(&cuts, Revision(last)).await;
            assert_eq!(done.is_ok(), is_last, "{done:?}");
            for name in [&stream, &other] {
                let known = store.stream_metadata(name.clone()).await.unwrap();
                assert_eq!(known.metadata.truncate_before, Some(Revision(cut)));
                let text = std::str::from_utf8(known.metadata.json()).unwrap();
                assert_eq!(text.contains(r#""own":true"#), *name == stream, "{text}");
            }
        }
    }
}
