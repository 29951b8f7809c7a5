//! The stream of states: what the owner has done, and that it lives.
//!
//! Invariant: each state is appended under the revision of the one before.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Append, BackOff, ErrorKind, EventId, EventStore, EventType, ExpectedRevision, ReadStream,
    Result, Revision, SetStreamMetadata, StreamFrom, StreamId, StreamMetadata, Subscription,
};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::record::{self, Kept, STATE, State, Through, What};
use crate::requests::{follow, json};

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

/// The last state.
#[derive(Debug)]
pub(crate) struct Last {
    pub(crate) revision: Revision,
    pub(crate) state: State,
}

/// What all states together say.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// The timers that were pending when they were last stored together, and after which request that was.
    pub(crate) kept: Vec<Kept>,
    pub(crate) through: Option<Through>,
    /// The timers that have fired since.
    pub(crate) fired: HashSet<EventId>,
    /// The number of states.
    pub(crate) events: u64,
}

impl States {
    pub(crate) fn new(store: Arc<dyn EventStore>, stream: StreamId) -> Result<Self> {
        Ok(Self {
            store,
            stream,
            event_type: EventType::new(STATE)?,
        })
    }

    /// Returns the last state; `None` if there is none.
    pub(crate) async fn last(&self) -> Result<Option<Last>> {
        let request = ReadStream::backwards(self.stream.clone()).limit(1);
        let page = match self.store.read_stream(request).await {
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => return Ok(None),
            page => page?,
        };
        let Some(event) = page.events.first() else {
            return Ok(None);
        };
        Ok(Some(Last {
            revision: event.revision,
            state: record::read(event)?,
        }))
    }

    /// Follows the states after a revision.
    pub(crate) async fn follow(&self, after: Option<Revision>) -> Result<Subscription> {
        follow(&*self.store, &self.stream, after).await
    }

    /// Reads the states up to a revision, or all. An owner reads up to the one by which it has claimed: it goes on to
    /// say that it lives, and would read that as well, without end if reads are slow.
    pub(crate) async fn read(&self, to: Option<Revision>) -> Result<Stored> {
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
                let state: State = record::read(event)?;
                match state.does {
                    What::Owned => {}
                    What::Idle { through } => {
                        stored.kept.clear();
                        stored.fired.clear();
                        stored.through = through;
                    }
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
                            stored.through = through;
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

    /// Lets what stands before a revision of a stream be scavenged. What else the metadata of the stream say is kept.
    /// What was cut before is not readable again: a process that stood still may come with an older revision.
    pub(crate) async fn cut(&self, stream: &StreamId, before: Revision) -> Result<()> {
        let known = self.store.stream_metadata(stream.clone()).await?;
        let is_cut = known.metadata.truncate_before >= Some(before);
        if is_cut {
            return Ok(());
        }
        let text = known.metadata.json();
        let mut document: Map<String, Value> = match text.is_empty() {
            true => Map::new(),
            false => serde_json::from_slice(text)
                .map_err(|error| gesta_core::Error::corrupt(error.to_string()))?,
        };
        document.insert("$tb".to_owned(), before.0.into());
        let expected = known
            .revision
            .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        let request = SetStreamMetadata {
            stream: stream.clone(),
            expected,
            metadata: StreamMetadata::parse(Value::Object(document).to_string())?,
        };
        self.store.set_stream_metadata(request).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::{EventData, EventStoreExt};
    use gesta_testkit::faulty::World;

    use super::*;

    /// Goal: what was cut is not readable again, whoever comes late with an older place; other metadata stay.
    #[tokio::test(start_paused = true)]
    async fn a_stream_is_never_cut_less_than_it_was() {
        let world = World::new(1);
        let store: Arc<dyn EventStore> = world.store().share();
        let stream = StreamId::new("a").unwrap();
        let of_type = EventType::new("b").unwrap();
        let event = |_| EventData::json(of_type.clone(), "1");
        let events: Vec<_> = (0..9).map(event).collect();
        let appended = store.append_to("a", ExpectedRevision::Any, events);
        appended.await.unwrap();
        let request = SetStreamMetadata {
            stream: stream.clone(),
            expected: ExpectedRevision::NoStream,
            metadata: StreamMetadata::parse(r#"{"$tb":2,"own":true}"#).unwrap(),
        };
        store.set_stream_metadata(request).await.unwrap();
        let states = States::new(Arc::clone(&store), stream.clone()).unwrap();
        for (before, cut) in [(5, 5), (3, 5), (5, 5), (6, 6)] {
            states.cut(&stream, Revision(before)).await.unwrap();
            let known = store.stream_metadata(stream.clone()).await.unwrap();
            let text = std::str::from_utf8(known.metadata.json())
                .unwrap()
                .to_owned();
            assert_eq!(known.metadata.truncate_before, Some(Revision(cut)));
            assert!(text.contains(r#""own":true"#), "{text}");
        }
    }
}
