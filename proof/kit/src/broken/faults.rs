//! The faults themselves.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use gesta_core::{
    AllFrom, AllPage, Append, Appended, Checkpoint, Error, ErrorKind, EventStore, EventStoreExt,
    ExpectedRevision, Filter, LogId, Place, Position, Query, ReadAll, Result, Revision, StreamId,
    Subscription, SubscriptionMessage, Timestamp,
};
use gesta_memory::MemoryStore;

use super::Fault;

/// A store with a fault.
pub(super) struct BrokenStore {
    pub(super) inner: MemoryStore,
    pub(super) fault: Fault,
    /// The last revisions as of the last append through this store.
    pub(super) remembered: Mutex<HashMap<StreamId, Revision>>,
    /// The places that were in a page before.
    pub(super) shown: Mutex<HashSet<(LogId, Position)>>,
}

impl BrokenStore {
    pub(super) fn new(inner: MemoryStore, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            remembered: Mutex::default(),
            shown: Mutex::default(),
        }
    }

    /// Returns the last revision of a stream, deleted or not.
    pub(super) async fn last(&self, stream: &StreamId) -> Option<Revision> {
        let all = self.inner.read_everything().await.ok()?;
        let last = all.iter().rfind(|event| event.stream == *stream);
        last.map(|event| event.revision)
    }

    pub(super) fn folded(&self, stream: StreamId) -> StreamId {
        match self.fault {
            Fault::FoldedNames => folded(&stream),
            _ => stream,
        }
    }
}

fn folded(stream: &StreamId) -> StreamId {
    StreamId::from_stored(stream.as_str().to_lowercase().into())
}

pub(super) async fn append(store: &BrokenStore, mut request: Append) -> Result<Appended> {
    match store.fault {
        Fault::StaleRefusal => from_memory(store, request).await,
        Fault::PartialBatch => stream_by_stream(store, request).await,
        Fault::OneByOne => event_by_event(store, request).await,
        Fault::CheckThenAct => check_then_act(store, request).await,
        Fault::DuplicateOnRetry => {
            for part in &mut request.streams {
                if part.expected == ExpectedRevision::Any {
                    let last = store.last(&part.stream).await;
                    part.expected = last.map_or(part.expected, ExpectedRevision::Exact);
                }
            }
            store.inner.append(request).await
        }
        Fault::AnswerOfNow => {
            let mut answer = store.inner.append(request).await?;
            let head = store.inner.info().await?.heads[usize::from(answer.log.0)];
            answer.position = head;
            Ok(answer)
        }
        Fault::NoActualRevision => store.inner.append(request).await.map_err(without_actual),
        Fault::TrimmedPayloads => {
            for event in request.streams.iter_mut().flat_map(|part| &mut part.events) {
                event.data = Bytes::copy_from_slice(event.data.trim_ascii());
            }
            store.inner.append(request).await
        }
        _ => store.inner.append(request).await,
    }
}

/// Refuses an append that contradicts the last revision that is remembered.
async fn from_memory(store: &BrokenStore, request: Append) -> Result<Appended> {
    for part in &request.streams {
        let remembered = store
            .remembered
            .lock()
            .expect("not poisoned")
            .get(&part.stream)
            .copied();
        if let (ExpectedRevision::Exact(claimed), Some(actual)) = (part.expected, remembered)
            && claimed > actual
        {
            return Err(ErrorKind::WrongExpectedRevision {
                stream: part.stream.clone(),
                expected: part.expected,
                actual: Some(actual),
            }
            .into());
        }
    }
    let answer = store.inner.append(request).await?;
    let mut remembered = store.remembered.lock().expect("not poisoned");
    for part in &answer.streams {
        remembered.insert(part.stream.clone(), part.last_revision);
    }
    Ok(answer)
}

async fn stream_by_stream(store: &BrokenStore, request: Append) -> Result<Appended> {
    request.validate()?;
    let mut whole: Option<Appended> = None;
    for part in request.streams {
        let answer = store
            .inner
            .append(Append {
                streams: vec![part],
                conditions: Vec::new(),
            })
            .await?;
        whole = Some(joined(whole, answer));
    }
    whole.ok_or_else(|| Error::invalid("appends", "must not be empty"))
}

fn joined(earlier: Option<Appended>, mut later: Appended) -> Appended {
    if let Some(earlier) = earlier {
        later.streams.splice(0..0, earlier.streams);
    }
    later
}

async fn event_by_event(store: &BrokenStore, request: Append) -> Result<Appended> {
    if request.streams.len() != 1 || request.validate().is_err() {
        return store.inner.append(request).await;
    }
    let whole = &request.streams[0];
    let mut expected = whole.expected;
    let mut first = None;
    let mut last = None;
    for event in whole.events.clone() {
        let one = Append::to(whole.stream.clone(), expected, vec![event]);
        let answer = store.inner.append(one).await?;
        tokio::task::yield_now().await;
        let stored = &answer.streams[0];
        expected = ExpectedRevision::Exact(stored.last_revision);
        first.get_or_insert(stored.first_revision);
        last = Some(answer);
    }
    let mut answer = last.ok_or_else(|| Error::invalid("events", "must not be empty"))?;
    answer.streams[0].first_revision = first.unwrap_or_default();
    Ok(answer)
}

async fn check_then_act(store: &BrokenStore, mut request: Append) -> Result<Appended> {
    if let [part] = request.streams.as_mut_slice()
        && let ExpectedRevision::Exact(claimed) = part.expected
        && store.last(&part.stream).await == Some(claimed)
    {
        tokio::task::yield_now().await;
        part.expected = ExpectedRevision::Any;
    }
    store.inner.append(request).await
}

fn without_actual(error: Error) -> Error {
    match error.kind().clone() {
        ErrorKind::WrongExpectedRevision {
            stream, expected, ..
        } => ErrorKind::WrongExpectedRevision {
            stream,
            expected,
            actual: None,
        }
        .into(),
        _ => error,
    }
}

pub(super) async fn read_all(store: &BrokenStore, mut request: ReadAll) -> Result<AllPage> {
    let info = store.inner.info().await?;
    match store.fault {
        Fault::AnyTag => request.filter = any_tag(&request.filter),
        Fault::AnyCheckpoint => {
            if let AllFrom::Checkpoint(checkpoint) = &request.from {
                let positions = cut(checkpoint, &info.heads);
                request.from = AllFrom::Checkpoint(Checkpoint::logs(info.incarnation, positions));
            }
        }
        _ => {}
    }
    let limit = request.limit;
    let mut page = store.inner.read_all(request).await?;
    match store.fault {
        Fault::LateVisibility => {
            let mut shown = store.shown.lock().expect("not poisoned");
            page.events.retain(|event| {
                let first_time = shown.insert((event.log, event.position));
                event.position.0 % 3 != 0 || !first_time
            });
        }
        Fault::EndTooEarly => page.end |= page.events.len() == limit,
        Fault::CreatedDecreases => {
            for event in &mut page.events {
                event.created = Timestamp(Timestamp::MAX.0 - event.created.0);
            }
        }
        _ => {}
    }
    Ok(page)
}

fn any_tag(filter: &Filter) -> Filter {
    let split = |query: &Query| -> Vec<Query> {
        let one = |tag: &gesta_core::Tag| Query {
            tags: vec![tag.clone()],
            ..query.clone()
        };
        if query.tags.is_empty() {
            vec![query.clone()]
        } else {
            query.tags.iter().map(one).collect()
        }
    };
    Filter {
        any_of: filter.any_of.iter().flat_map(split).collect(),
    }
}

fn cut(checkpoint: &Checkpoint, heads: &[Position]) -> Vec<Position> {
    let Place::Logs(positions) = &checkpoint.place else {
        return heads.to_vec();
    };
    let at = |(log, head): (usize, &Position)| positions.get(log).map_or(*head, |p| *p.min(head));
    heads.iter().enumerate().map(at).collect()
}

pub(super) fn subscription(fault: Fault, messages: Subscription) -> Subscription {
    match fault {
        Fault::SubscriptionDrops => Subscription::new(times(messages, |count| count % 5 != 4, 0)),
        Fault::SubscriptionDoubles => Subscription::new(times(messages, |count| count % 5 != 4, 2)),
        Fault::GapBeforeLive => Subscription::new(gap_before_live(messages)),
        Fault::NeverWoken => {
            let caught_up = |message: &Result<SubscriptionMessage>| {
                matches!(message, Ok(SubscriptionMessage::CaughtUp(_)))
            };
            let asleep = messages.scan(false, move |asleep, message| {
                let before = std::mem::replace(asleep, *asleep || caught_up(&message));
                std::future::ready((!before).then_some(message))
            });
            Subscription::new(asleep.chain(stream::pending()))
        }
        Fault::CheckpointTooFar => Subscription::new(messages.map(|m| m.map(too_far))),
        _ => messages,
    }
}

/// Delivers the events for which `once` is true once, and the others `otherwise` times.
fn times(
    messages: Subscription,
    once: fn(usize) -> bool,
    otherwise: usize,
) -> impl Stream<Item = Result<SubscriptionMessage>> {
    let mut count = 0;
    messages.flat_map(move |message| {
        let is_event = matches!(message, Ok(SubscriptionMessage::Event { .. }));
        count += usize::from(is_event);
        let copies = if !is_event || once(count) {
            1
        } else {
            otherwise
        };
        stream::iter(vec![message; copies])
    })
}

fn gap_before_live(messages: Subscription) -> impl Stream<Item = Result<SubscriptionMessage>> {
    let mut gap = false;
    messages.filter(move |message| {
        let keep = match message {
            Ok(SubscriptionMessage::CaughtUp(_)) => {
                gap = true;
                true
            }
            Ok(SubscriptionMessage::Event { .. }) => !std::mem::take(&mut gap),
            _ => true,
        };
        std::future::ready(keep)
    })
}

fn too_far(message: SubscriptionMessage) -> SubscriptionMessage {
    match message {
        SubscriptionMessage::Event { event, checkpoint } => {
            let checkpoint = match checkpoint.place {
                Place::Logs(mut positions) => {
                    let LogId(log) = event.log;
                    positions[usize::from(log)] = event.position.next();
                    Checkpoint::logs(checkpoint.incarnation, positions)
                }
                place => Checkpoint {
                    place,
                    ..checkpoint
                },
            };
            SubscriptionMessage::Event {
                event: Arc::clone(&event),
                checkpoint,
            }
        }
        other => other,
    }
}
