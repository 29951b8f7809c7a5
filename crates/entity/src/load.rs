//! Loading entities: the snapshot and the events after it, many entities per round trip, few statements at once.
//!
//! While as many statements run as are allowed, requests gather, and the next statement takes them together. Pages are
//! handed to the shard as they come, so the events of a long stream are never all in memory.

use std::sync::Arc;

use gesta_core::shares::{self, Holder};
use gesta_core::{
    ErrorKind, LoadFrom, LoadStream, LoadedPage, OwnerStore, RecordedEvent, Revision, StreamId,
};
use tokio::sync::{Semaphore, mpsc};

use crate::decider::Decider;
use crate::message::{Deleted, LoadedPart, Message};
use crate::snapshot::snapshot_stream;

/// The number of events of one entity in one page.
const PAGE_EVENTS: usize = 1_000;

/// A request to load one entity.
pub(crate) struct Load<D: Decider> {
    pub(crate) stream: StreamId,
    /// The number of this load, which distinguishes it from other loads of the same stream.
    pub(crate) number: u64,
    pub(crate) snapshot: UseSnapshot,
    /// The shard that gets the [`LoadedPart`]s.
    pub(crate) shard: mpsc::UnboundedSender<Message<D>>,
}

/// Whether to look for a snapshot first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UseSnapshot {
    Yes,
    No,
}

/// Takes requests until nobody can send any more.
pub(crate) async fn load_all<D: Decider>(
    store: Arc<dyn OwnerStore>,
    mut requests: mpsc::UnboundedReceiver<Load<D>>,
    loads_max: usize,
    batch_max: usize,
) {
    let running = Arc::new(Semaphore::new(loads_max.max(1)));
    loop {
        // The permit first, then the requests: so those that have to wait are loaded together.
        let Ok(permit) = Arc::clone(&running).acquire_owned().await else {
            return;
        };
        let mut batch = Vec::new();
        if requests.recv_many(&mut batch, batch_max).await == 0 {
            return;
        }
        let store = Arc::clone(&store);
        let loading = async move {
            load_batch(&*store, batch).await;
            drop(permit);
        };
        tokio::spawn(shares::act_as(Holder::Part("entities"), loading));
    }
}

async fn load_batch<D: Decider>(store: &dyn OwnerStore, batch: Vec<Load<D>>) {
    let (mut open, with_snapshot): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|load| (load, LoadFrom::Start))
        .partition(|(load, _)| load.snapshot == UseSnapshot::No);
    open.extend(find_snapshots(store, with_snapshot).await);
    while !open.is_empty() {
        let requests = open.iter().map(|(load, from)| LoadStream {
            stream: load.stream.clone(),
            from: *from,
            limit: PAGE_EVENTS,
        });
        let answers = store.read_streams(requests.collect()).await;
        let taken = std::mem::take(&mut open);
        match answers {
            Ok(pages) => {
                for ((load, from), page) in taken.into_iter().zip(pages) {
                    let next = take_page(&load, from, page);
                    open.extend(next.map(|next| (load, next)));
                }
            }
            Err(error) => fail_all(taken, &error),
        }
    }
}

/// Hands a page to the shard. Returns where to go on, if there is more.
fn take_page<D: Decider>(load: &Load<D>, from: LoadFrom, loaded: LoadedPage) -> Option<LoadFrom> {
    let deleted = Deleted {
        before: loaded.deleted_before,
        until: loaded.changed_at,
    };
    match loaded.page {
        Ok(page) => {
            if page.events.is_empty() && page.end && from == LoadFrom::Start {
                load.send(LoadedPart::Failed(hidden(&load.stream)));
                return None;
            }
            if !page.events.is_empty() {
                load.send(LoadedPart::Events {
                    events: page.events,
                    deleted,
                });
            }
            if !page.end {
                return Some(page.next.map_or(from, LoadFrom::Revision));
            }
            let last = Some(page.last_revision);
            load.send(LoadedPart::End { last, deleted });
        }
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
            let last = None;
            load.send(LoadedPart::End { last, deleted });
        }
        Err(error) => load.send(LoadedPart::Failed(error)),
    }
    None
}

/// Makes the error for a stream that exists, but whose metadata hides even its last event, which an owner must know.
fn hidden(stream: &StreamId) -> gesta_core::Error {
    ErrorKind::Unsupported(format!(
        "stream {stream} has events, but none is readable ($tb, $maxAge or $maxCount hide them): an entity needs its last event"
    ))
    .into()
}

/// Hands the last snapshots to the shards. Returns for each load where the events after its snapshot begin.
async fn find_snapshots<D: Decider>(
    store: &dyn OwnerStore,
    loads: Vec<(Load<D>, LoadFrom)>,
) -> Vec<(Load<D>, LoadFrom)> {
    let mut asked = Vec::with_capacity(loads.len());
    let mut requests = Vec::with_capacity(loads.len());
    let mut ready = Vec::with_capacity(loads.len());
    for (load, from) in loads {
        match snapshot_stream(&load.stream) {
            Ok(stream) => {
                requests.push(LoadStream {
                    stream,
                    from: LoadFrom::Last,
                    limit: 1,
                });
                asked.push((load, from));
            }
            // Its name would be too long: it has none.
            Err(_) => ready.push((load, from)),
        }
    }
    if requests.is_empty() {
        return ready;
    }
    match store.read_streams(requests).await {
        Ok(pages) => {
            for ((load, from), page) in asked.into_iter().zip(pages) {
                let page = page.page.ok();
                let found = page.and_then(|page| page.events.into_iter().next());
                let after = found.as_ref().and_then(revision_of);
                if let (Some(found), Some(revision)) = (found, after) {
                    load.send(LoadedPart::Snapshot(Box::new(found)));
                    ready.push((load, LoadFrom::Revision(revision)));
                } else {
                    ready.push((load, from));
                }
            }
        }
        Err(error) => fail_all(asked, &error),
    }
    ready
}

/// Returns the revision after which a snapshot was taken.
fn revision_of(snapshot: &RecordedEvent) -> Option<Revision> {
    #[derive(serde::Deserialize)]
    struct Only {
        revision: u64,
    }
    serde_json::from_slice::<Only>(&snapshot.metadata)
        .ok()
        .map(|header| Revision(header.revision))
}

fn fail_all<D: Decider>(loads: Vec<(Load<D>, LoadFrom)>, error: &gesta_core::Error) {
    for (load, _) in loads {
        load.send(LoadedPart::Failed(error.clone()));
    }
}

impl<D: Decider> Load<D> {
    fn send(&self, part: LoadedPart) {
        // A shard that has gone away has nobody left to answer.
        let _ = self.shard.send(Message::Loaded {
            stream: self.stream.clone(),
            number: self.number,
            part,
        });
    }
}
