//! Faults planted between the runtime and a store that is right. The checker must find each of them.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::*;
use gesta_store::Store;

use crate::play::Plant;

/// Nothing is wrong.
pub(crate) const SOUND: Plant = |store| store;
/// Submissions are told to be durable when they are handed over.
pub(crate) const EARLY_RELEASE: Plant = |store| Planted::over(store, Fault::EarlyRelease);
/// That an owner is up to date is said without asking.
pub(crate) const STALE_READ: Plant = |store| Planted::over(store, Fault::StaleRead);
/// Events are stored whatever they were decided upon.
pub(crate) const IGNORES_AFTER: Plant = |store| Planted::over(store, Fault::IgnoresAfter);
/// Events are stored, but the owner is told that the database was away.
pub(crate) const DENIES: Plant = |store| Planted::over(store, Fault::Denies);
/// Events are stored twice.
pub(crate) const SENDS_TWICE: Plant = |store| Planted::over(store, Fault::SendsTwice);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    EarlyRelease,
    StaleRead,
    IgnoresAfter,
    Denies,
    SendsTwice,
}

struct Planted {
    store: Arc<Store>,
    fault: Fault,
}

impl Planted {
    fn over(store: Arc<Store>, fault: Fault) -> Arc<dyn OwnerStore> {
        Arc::new(Self { store, fault })
    }

    /// Stores events without a claim.
    fn append(&self, stream: StreamId, events: Vec<EventData>, on_outcome: OnOutcome) {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            let append = Append::to(stream, ExpectedRevision::Any, events);
            on_outcome(store.append(append).await);
        });
    }
}

fn made_up(stream: &StreamId) -> Appended {
    Appended {
        streams: vec![AppendedStream {
            stream: stream.clone(),
            first_revision: Revision(0),
            last_revision: Revision(0),
            position: Position(1),
        }],
        log: LogId(0),
        position: Position(1),
        checkpoint: Checkpoint::in_log(Incarnation::random(), 1, LogId(0), Position(1)),
    }
}

#[async_trait]
impl OwnerStore for Planted {
    fn submit(&self, mut submission: Submission) {
        let is_question = submission.events.is_empty();
        match self.fault {
            Fault::EarlyRelease if !is_question => {
                let on_outcome = std::mem::replace(&mut submission.on_outcome, Box::new(drop));
                let told = made_up(&submission.stream);
                self.store.submit(submission);
                on_outcome(Ok(told));
            }
            Fault::StaleRead if is_question => {
                let told = made_up(&submission.stream);
                (submission.on_outcome)(Ok(told));
            }
            Fault::IgnoresAfter if !is_question => {
                self.append(submission.stream, submission.events, submission.on_outcome);
            }
            Fault::Denies if !is_question => {
                let on_outcome = submission.on_outcome;
                submission.on_outcome = Box::new(|outcome| {
                    on_outcome(outcome.and(Err(Error::unavailable("so it says"))));
                });
                self.store.submit(submission);
            }
            Fault::SendsTwice if !is_question => {
                let (stream, events) = (submission.stream.clone(), submission.events.clone());
                self.store.submit(submission);
                let again = events
                    .into_iter()
                    .map(|event| EventData { id: None, ..event });
                self.append(stream, again.collect(), Box::new(drop));
            }
            _ => self.store.submit(submission),
        }
    }

    fn known_end(&self, stream: &StreamId) -> Position {
        self.store.known_end(stream)
    }

    async fn read_streams(&self, requests: Vec<LoadStream>) -> Result<Vec<LoadedPage>> {
        self.store.read_streams(requests).await
    }
}

#[async_trait]
impl EventStore for Planted {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.store.incarnation().await
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.store.info().await
    }

    async fn ready(&self) -> Result<()> {
        self.store.ready().await
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        self.store.append(request).await
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.store.read_stream(request).await
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.store.read_all(request).await
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.store.list_streams(request).await
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.store.delete_stream(request).await
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.store.stream_metadata(stream).await
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        self.store.set_stream_metadata(request).await
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.store.subscribe(request).await
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        resolve_one_by_one(self, events).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.store.shutdown().await
    }
}
