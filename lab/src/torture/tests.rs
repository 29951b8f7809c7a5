//! Writers, tails and judge together, on stores that keep or break their word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, Error, ErrorKind, EventId, EventStore,
    EventStoreExt, ListStreams, ReadAll, ReadStream, Result, SetStreamMetadata, StoreInfo,
    StreamId, StreamMetadataRecord, StreamPage, StreamsPage, Subscribe, Subscription,
};
use gesta_memory::MemoryStore;
use gesta_testkit::history::Report;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::broken;
use super::record::{Record, SharedRecord};
use super::tails::{Manner, Tail, TailLog};
use super::writers::Writer;

/// What happens to one append out of twenty.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Breach {
    /// It is stored, and the answer is lost; or it is not, and the store says that it is unavailable. Both are allowed.
    Bumpy,
    /// It is acknowledged and not stored.
    Forget,
    /// A retry is stored again, as if it were new.
    Repeat,
    /// It is refused for no reason.
    Refuse,
}

struct Bumpy {
    inner: MemoryStore,
    breach: Breach,
    count: AtomicU64,
}

#[async_trait]
impl EventStore for Bumpy {
    async fn append(&self, request: Append) -> Result<Appended> {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        match (self.breach, n % 20) {
            (Breach::Bumpy | Breach::Repeat, 7) => Err(Error::unavailable("a bump")),
            (Breach::Bumpy, 13) => {
                self.inner.append(request).await?;
                Err(ErrorKind::OutcomeUnknown("a bump".into()).into())
            }
            (Breach::Forget, 7) => MemoryStore::new().append(request).await,
            (Breach::Repeat, 13) => {
                // Stored once under the ids asked for, once as the store of a careless retry would: again, at the end.
                let answer = self.inner.append(request.clone()).await?;
                let mut again = request;
                for part in &mut again.streams {
                    part.expected = gesta_core::ExpectedRevision::Any;
                    part.events
                        .iter_mut()
                        .for_each(|event| event.id = Some(EventId::random()));
                }
                self.inner.append(again).await?;
                Ok(answer)
            }
            (Breach::Refuse, 7) => Err(ErrorKind::Refused("no reason".into()).into()),
            _ => self.inner.append(request).await,
        }
    }
    async fn info(&self) -> Result<StoreInfo> {
        self.inner.info().await
    }
    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.inner.read_stream(request).await
    }
    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.inner.read_all(request).await
    }
    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.inner.list_streams(request).await
    }
    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        self.inner.delete_stream(request).await
    }
    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.inner.stream_metadata(stream).await
    }
    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<Deleted> {
        self.inner.set_stream_metadata(request).await
    }
    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.inner.subscribe(request).await
    }
    async fn shutdown(&self) -> Result<()> {
        self.inner.shutdown().await
    }
}

/// Writers and tails at work until a number of appends were tried; then the verdict.
async fn tortured(breach: Breach) -> (Report, SharedRecord) {
    let store = Arc::new(Bumpy {
        inner: MemoryStore::new(),
        breach,
        count: AtomicU64::new(0),
    });
    let shared: Arc<dyn EventStore> = store.clone();
    let record = Arc::new(Record::default());
    let (writers_over, tails_over) = (CancellationToken::new(), CancellationToken::new());
    let (let_go, listener) = watch::channel(0);
    let (mut writers, mut tails, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    for manner in [Manner::Subscribe, Manner::SubscribeRestless, Manner::Poll] {
        let log = Arc::new(TailLog::default());
        logs.push(Arc::clone(&log));
        let id = record
            .history
            .tailer("tail", Vec::new(), gesta_core::Filter::ALL);
        let tail = Tail {
            id,
            name: format!("{manner:?}"),
            manner,
            store: Arc::clone(&shared),
            let_go: listener.clone(),
            over: tails_over.clone(),
            record: Arc::clone(&record),
            log,
        };
        tails.push(tokio::spawn(tail.run()));
    }
    for number in 0..4 {
        let writer = Writer {
            number,
            entry: 0,
            store: Arc::clone(&shared),
            pause: Duration::ZERO,
            seed: 1,
            run: "test".into(),
            over: writers_over.clone(),
            record: Arc::clone(&record),
            progress: Arc::new(AtomicU64::new(0)),
            epoch: Instant::now(),
        };
        writers.push(tokio::spawn(writer.run()));
    }
    let mut round = 0;
    while store.count.load(Ordering::Relaxed) < 2_000 {
        round += 1;
        let_go.send_replace(round);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    writers_over.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    let stored = store.inner.read_everything().await.unwrap();
    let last = stored.last().map(|event| event.position);
    let deadline = Instant::now() + Duration::from_secs(30);
    while logs
        .iter()
        .any(|log| log.ends().values().max().copied() != last)
    {
        assert!(Instant::now() < deadline, "a tail did not arrive");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tails_over.cancel();
    for tail in tails {
        tail.await.unwrap();
    }
    record.settle_unknown();
    (record.history.check_against(&stored), record)
}

#[tokio::test]
async fn bumps_alone_break_no_promise() {
    let (verdict, record) = tortured(Breach::Bumpy).await;
    verdict.assert_clean();
    assert_eq!(verdict.events_foreign, 0);
    assert!(verdict.events_acknowledged > 1_000);
    let counts = record.counts()[&0].clone();
    assert!(
        counts.unavailable > 0 && counts.refused > 0 && counts.open == 0,
        "{counts:?}"
    );
    // No round was under way that excuses them.
    assert!(
        counts.unknown > 0 && record.violation_count() == counts.unknown,
        "{:?}",
        record.violations()
    );
}

#[tokio::test]
async fn a_forgetful_store_is_caught() {
    let (verdict, _) = tortured(Breach::Forget).await;
    assert!(broken(&verdict)["lost"] > 0, "{verdict}");
}

#[tokio::test]
async fn a_store_that_stores_retries_again_is_caught() {
    let (verdict, _) = tortured(Breach::Repeat).await;
    assert!(verdict.events_foreign > 0, "{verdict}");
}

#[tokio::test]
async fn a_wrong_refusal_is_caught() {
    let (_, record) = tortured(Breach::Refuse).await;
    assert!(record.violation_count() > 0);
    assert!(
        record
            .violations()
            .iter()
            .any(|text| text.contains("refused wrongly"))
    );
}
