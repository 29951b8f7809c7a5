//! The stream of states: what the owner has done, and that it lives.
//!
//! Invariants: each state of an owner is appended under the revision of the one before, and in the history of the store
//! in which that one was stored: a revision alone is given away again after a loss. Both streams are cut by one append,
//! which is stored only if the state that makes it right is the last one, in its history. Both streams lie in one log,
//! so what is lost of one is never older than what is left of the other. What a state says of requests that are lost
//! does not count.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Append, BackOff, Checkpoint, Condition, ErrorKind, EventData, EventId, EventStore, EventType,
    ExpectedRevision, Incarnation, ReadStream, RecordedEvent, Result, Revision, StreamAppend,
    StreamFrom, StreamId, StreamMetadata, Subscription,
};
use serde_json::{Map, Value};
use tokio::time::Instant;
use uuid::Uuid;

use crate::record::{self, STATE, State, Through, What};
use crate::requests::{ERROR_CHARS_MAX, follow, json};
use crate::timer::Timer;

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

/// The last state of an owner.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) revision: Revision,
    /// Where it lies in the log, and in which history of the store.
    checkpoint: Checkpoint,
}

impl Head {
    /// Returns the history of the store in which the state was stored.
    pub(crate) fn history(&self) -> Incarnation {
        self.checkpoint.incarnation
    }
}

/// What all states together say.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// The timers that were pending when they were last stored together, and after which request that was.
    pub(crate) kept: Vec<Timer>,
    pub(crate) through: Option<Through>,
    /// Whether later none was pending, and after which request.
    pub(crate) is_settled: bool,
    pub(crate) settled: Option<Through>,
    /// The timers that have fired since.
    pub(crate) fired: HashSet<EventId>,
    /// The requests up to which those that have fired were set.
    fired_through: HashSet<Through>,
    /// The number of states.
    pub(crate) events: u64,
    /// Whether the first states cannot be read, though no owner has cut them.
    pub(crate) is_cut_by_others: bool,
}

impl Stored {
    /// Returns the requests on which rests what counts.
    pub(crate) fn rests_on(&self) -> HashSet<Through> {
        let last = self.settled.or(self.through);
        self.fired_through.iter().copied().chain(last).collect()
    }

    /// Nothing was pending after this request. What was asked until then is read again from where it begins, and so are
    /// the timers that were stored together: they say which requests are out of date.
    fn settle(&mut self, through: Option<Through>) {
        (self.is_settled, self.settled) = (true, through);
        self.forget_fired();
        let is_before = |from: &Through| through.is_some_and(|it| from.revision <= it.revision);
        self.through = self.through.filter(is_before);
    }

    /// These were pending after this request.
    fn keep(&mut self, timers: Vec<Timer>, through: Option<Through>) {
        self.kept = timers;
        self.through = through;
        (self.is_settled, self.settled) = (false, None);
        self.forget_fired();
    }

    fn fire(&mut self, ids: Vec<Uuid>, through: Option<Through>) {
        self.fired.extend(ids.into_iter().map(EventId));
        self.fired_through.extend(through);
    }

    fn forget_fired(&mut self) {
        self.fired.clear();
        self.fired_through.clear();
    }
}

/// What the parts of one whole have in common: their owner, their number, and the last request.
type Whole = (Option<Uuid>, u32, Option<Through>);

/// The parts of all timers that are stored together, as far as they are read.
#[derive(Debug, Default)]
struct Parts {
    of: Option<Whole>,
    count: u32,
    timers: Vec<Timer>,
}

impl Parts {
    /// Takes a part. Returns all timers with the last one. A part that does not follow the one before is passed over:
    /// its beginning was cut off or lost.
    fn take(&mut self, whole: Whole, part: u32, timers: Vec<Timer>) -> Option<Vec<Timer>> {
        if part == 0 {
            *self = Self {
                of: Some(whole),
                ..Self::default()
            };
        }
        if (self.of, self.count) != (Some(whole), part) {
            return None;
        }
        self.count += 1;
        self.timers.extend(timers);
        let (_, of, _) = whole;
        let is_whole = self.count == of;
        is_whole.then(|| std::mem::take(self).timers)
    }
}

/// Reads a state, and the timers that it holds. One that cannot be read is no owner's: it is told of, and stops nobody.
fn readable(event: &RecordedEvent) -> Option<(State, Vec<Timer>)> {
    match record::read_state(event) {
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
                Some((state, _)) => Last::State(event.revision, state),
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
        let mut parts = Parts::default();
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
                let Some((state, timers)) = readable(event) else {
                    continue;
                };
                if stored.events == 1 {
                    let is_whole = matches!(state.does, What::Kept { part: 0, .. });
                    stored.is_cut_by_others = event.revision > Revision(0) && !is_whole;
                }
                match state.does {
                    What::Owned => {}
                    What::Idle { through }
                    | What::Fired { through, .. }
                    | What::Kept { through, .. }
                        if is_lost(&through) => {}
                    What::Idle { through } => stored.settle(through),
                    What::Fired { ids, through } => stored.fire(ids, through),
                    What::Kept {
                        part, of, through, ..
                    } => {
                        let whole = (state.owner, of, through);
                        if let Some(timers) = parts.take(whole, part, timers) {
                            stored.keep(timers, through);
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

    /// Appends the state by which a process claims the timers, after the last one that it has found in this history.
    /// Returns the state; `None` if another process has appended meanwhile, or the store has another history. While the
    /// store is away it is tried again, within this time.
    pub(crate) async fn claim(
        &self,
        after: Option<Revision>,
        history: Incarnation,
        state: &State,
        within: Duration,
    ) -> Result<Option<Head>> {
        let expected = after.map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        let event = json(&self.event_type, state)?;
        let append = Append::to(self.stream.clone(), expected, vec![event]);
        self.append_within(append, history, within).await
    }

    /// Appends a state of an owner after its last one, as [`claim`](Self::claim) does, and in the history of that one:
    /// what the owner has read, and what its handlers have done, may not be there in another one.
    pub(crate) async fn append(
        &self,
        after: &Head,
        state: &State,
        within: Duration,
    ) -> Result<Option<Head>> {
        let event = json(&self.event_type, state)?;
        let expected = ExpectedRevision::Exact(after.revision);
        let mut append = Append::to(self.stream.clone(), expected, vec![event]);
        let history = Condition::same_history(after.checkpoint.clone());
        append.conditions.push(history);
        self.append_within(append, after.history(), within).await
    }

    async fn append_within(
        &self,
        append: Append,
        history: Incarnation,
        within: Duration,
    ) -> Result<Option<Head>> {
        let (begun, mut back_off) = (Instant::now(), BackOff::new(PAUSES.0, PAUSES.1));
        loop {
            // The same id each time: what was stored is recognised.
            match self.store.append(append.clone()).await {
                Ok(appended) => {
                    let mut streams = appended.streams.iter();
                    // What was stored before the answer was lost may be recognised in another history.
                    let last = streams
                        .next()
                        .filter(|_| appended.checkpoint.incarnation == history);
                    return Ok(last.map(|last| Head {
                        revision: last.last_revision,
                        checkpoint: appended.checkpoint.clone(),
                    }));
                }
                Err(error) => match error.kind() {
                    ErrorKind::WrongExpectedRevision { .. } | ErrorKind::InvalidCheckpoint(_) => {
                        return Ok(None);
                    }
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

    /// Lets what stands before these revisions of both streams be scavenged, provided that `last` is the last state,
    /// and the store has the history of that state. What else the metadata of the streams say is kept. What was cut
    /// before is not readable again: a process that stood still may come with an older revision. Returns false if the
    /// store has another history.
    pub(crate) async fn cut(&self, cuts: &[(&StreamId, Revision)], last: &Head) -> Result<bool> {
        let mut streams = Vec::new();
        for (stream, before) in cuts {
            streams.extend(self.cut_of(stream, *before).await?);
        }
        if streams.is_empty() {
            return Ok(true);
        }
        let is_last = Condition::Stream {
            stream: self.stream.clone(),
            expected: ExpectedRevision::Exact(last.revision),
        };
        let history = Condition::same_history(last.checkpoint.clone());
        let append = Append {
            streams,
            conditions: vec![is_last, history],
        };
        match self.store.append(append).await {
            Err(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => Ok(false),
            appended => appended.map(|_| true),
        }
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
    use gesta_kit::faulty::World;

    use super::*;

    /// Goal: only parts of one whole make one, in their order: what others have stored together, or at another time, is
    /// not mixed with it.
    #[test]
    fn parts_of_two_wholes_make_none() {
        let timer = |key: &str| Timer {
            key: key.to_owned(),
            due: gesta_core::Timestamp(0),
            id: EventId(Uuid::from_u128(0)),
            data: crate::data::Data::default(),
            because: None,
        };
        let through = |revision| {
            let id = Uuid::from_u128(1);
            Some(Through {
                revision,
                id,
                created: None,
            })
        };
        let owner = |number| Some(Uuid::from_u128(number));
        let one: Whole = (owner(1), 2, through(5));
        for other in [
            (owner(2), 2, through(5)),
            (owner(1), 2, through(6)),
            (owner(1), 3, through(5)),
        ] {
            let mut parts = Parts::default();
            assert_eq!(parts.take(one, 1, vec![timer("before")]), None);
            assert_eq!(parts.take(one, 0, vec![timer("a")]), None);
            assert_eq!(parts.take(other, 1, vec![timer("b")]), None, "{other:?}");
            let whole = parts.take(one, 1, vec![timer("c")]);
            assert_eq!(whole, Some(vec![timer("a"), timer("c")]), "{other:?}");
            assert_eq!(parts.take(one, 1, vec![timer("c")]), None);
        }
    }

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
        let info = store.info().await.unwrap();
        let checkpoint = Checkpoint::logs(info.incarnation, info.heads);
        for (before, cut, last, is_last) in [
            (5, 5, 8, true),
            (3, 5, 8, true),
            (5, 5, 8, true),
            (6, 5, 7, false),
            (6, 5, 9, false),
            (6, 6, 8, true),
        ] {
            let cuts = [(&stream, Revision(before)), (&other, Revision(before))];
            let revision = Revision(last);
            let checkpoint = checkpoint.clone();
            let done = states
                .cut(
                    &cuts,
                    &Head {
                        revision,
                        checkpoint,
                    },
                )
                .await;
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
