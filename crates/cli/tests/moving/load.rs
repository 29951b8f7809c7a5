//! Writers with a stream each, a reader of all streams and the consumer of a group, which go on through a move, with
//! the visitors of a cinema beside them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_client::HttpStore;
use gesta_core::{
    AllFrom, Append, EventData, EventId, EventStore, EventStoreExt, EventType, ExpectedRevision,
    Position, ReadAll, RecordedEvent, StreamId,
};
use gesta_groups::{ConsumerGroups, Create, Error, GroupId, Settings, Source};
use tokio::task::JoinHandle;

use crate::PAUSE;
use crate::answers::Answers;
use crate::support::PATIENCE;
use crate::visitors::Visitors;

/// Writers, each with a stream of its own and one append at a time.
const WRITERS: usize = 6;
/// Appends of every writer before a move begins, and after it.
const APPENDS: usize = 5;

/// Writers and a reader, which know the servers of both sides.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    /// Of each writer, and of each visitor.
    answers: Vec<Answers>,
    writers: Vec<JoinHandle<Vec<EventId>>>,
    reader: JoinHandle<Vec<(Position, EventId)>>,
    consumer: JoinHandle<()>,
    consumed: Consumed,
    pub(crate) visitors: Option<Visitors>,
}

/// The events that the consumer of the group was given.
type Consumed = Arc<Mutex<HashSet<EventId>>>;

impl Load {
    pub(crate) fn start(urls: &[String], visitors: Option<Visitors>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut answers, mut writers) = (Vec::new(), Vec::new());
        for writer in 0..WRITERS {
            let count = Answers::new();
            answers.push(count.clone());
            // Each begins with another server.
            let mut urls = urls.to_vec();
            let first = writer % urls.len();
            urls.rotate_left(first);
            let stop = Arc::clone(&stop);
            writers.push(tokio::spawn(write(store_of(&urls), writer, stop, count)));
        }
        let reader = tokio::spawn(read_until_stopped(store_of(urls), Arc::clone(&stop)));
        let consumed = Consumed::default();
        let consumer = tokio::spawn(consume(store_of(urls), Arc::clone(&consumed)));
        answers.extend(
            visitors
                .iter()
                .flat_map(|visitors| visitors.answers.clone()),
        );
        Self {
            stop,
            answers,
            writers,
            reader,
            consumer,
            consumed,
            visitors,
        }
    }

    /// Waits until every writer and every visitor has got some answers more.
    pub(crate) async fn goes_on(&self) {
        answers_come(&self.answers).await;
    }

    /// The same of the writers alone.
    pub(crate) async fn writers_go_on(&self) {
        answers_come(&self.answers[..WRITERS]).await;
    }

    /// The same of the visitors alone, if there are some.
    pub(crate) async fn visitors_go_on(&self) {
        answers_come(&self.answers[WRITERS..]).await;
    }
    /// From now on the longest wait of each client counts.
    pub(crate) fn measure(&self) {
        self.answers.iter().for_each(Answers::measure);
    }

    /// The longest waits of a writer and of a visitor since then.
    pub(crate) fn waited(&self) -> [Duration; 2] {
        let (writers, visitors) = self.answers.split_at(WRITERS);
        [writers, visitors].map(|of| of.iter().map(Answers::waited).max().unwrap_or_default())
    }

    /// Stops, and compares what was acknowledged and read with what `url` serves, and with what the cinema shows.
    pub(crate) async fn check(mut self, url: &str, cinema: Option<&str>) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        let visitors = self.visitors.take().zip(cinema);
        let reservations = visitors.map_or(0, |(visitors, cinema)| visitors.check(cinema));
        let store = HttpStore::connect(url).unwrap();
        let mut events = 0;
        for (writer, written) in std::mem::take(&mut self.writers).into_iter().enumerate() {
            let ids = tokio::time::timeout(PATIENCE, written).await;
            let ids = ids.expect("the last append ends").unwrap();
            let stored = store.read_whole_stream(&stream_of(writer)).await.unwrap();
            let stored: Vec<EventId> = stored.iter().map(|event| event.id).collect();
            assert_eq!(stored, ids, "writer {writer}: stored, and acknowledged");
            events += ids.len();
            if writer == CONSUMED {
                self.consumed_all(&ids).await;
            }
        }
        let read = tokio::time::timeout(PATIENCE, self.reader).await;
        let read = read.expect("the reader ends").unwrap();
        let all = store.read_everything().await.unwrap();
        let is_reservation =
            |event: &&RecordedEvent| event.event_type.as_str() == "seat-reserved.v1";
        let stored = all.iter().filter(is_reservation).count();
        assert_eq!(stored, reservations, "reservations stored, and confirmed");
        let all: Vec<_> = all.iter().map(|event| (event.position, event.id)).collect();
        assert_eq!(read, all[..read.len()], "read by checkpoints, and stored");
        self.consumer.abort();
        events
    }

    /// Waits until the group has delivered every one of these.
    async fn consumed_all(&self, ids: &[EventId]) {
        let begun = Instant::now();
        loop {
            let consumed = self.consumed.lock().unwrap().clone();
            let missing = ids.iter().filter(|id| !consumed.contains(id)).count();
            if missing == 0 {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{missing} were not delivered");
            assert!(!self.consumer.is_finished(), "the consumer has ended");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Waits until each of these clients has got some answers more.
async fn answers_come(to: &[Answers]) {
    let counts = || -> Vec<usize> { to.iter().map(Answers::count).collect() };
    let (before, begun) = (counts(), Instant::now());
    loop {
        let now = counts();
        if before
            .iter()
            .zip(&now)
            .all(|(before, now)| *now >= before + APPENDS)
        {
            return;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "appends do not go on: {before:?} {now:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn store_of(urls: &[String]) -> HttpStore {
    let urls: Vec<&str> = urls.iter().map(|url| &**url).collect();
    HttpStore::connect_to_cluster(&urls, gesta_client::Config::default()).unwrap()
}

fn stream_of(writer: usize) -> String {
    format!("writer-{writer}")
}

/// Appends one event after the other, each again with the same id until it is acknowledged.
async fn write(
    store: HttpStore,
    writer: usize,
    stop: Arc<AtomicBool>,
    acknowledged: Answers,
) -> Vec<EventId> {
    let (mut ids, stream) = (Vec::new(), StreamId::new(stream_of(writer)).unwrap());
    while !stop.load(Ordering::SeqCst) {
        let id = EventId::random();
        let event = EventData::json(EventType::new("happened").unwrap(), "{}").with_id(id);
        let append = Append::to(stream.clone(), ExpectedRevision::Any, vec![event]);
        while let Err(error) = store.append(append.clone()).await {
            assert!(error.is_retryable(), "{stream}: {error}");
            tokio::time::sleep(PAUSE).await;
        }
        ids.push(id);
        acknowledged.note();
    }
    ids
}

/// Reads all events, page by page, each from the checkpoint of the one before, whoever serves it.
async fn read_until_stopped(store: HttpStore, stop: Arc<AtomicBool>) -> Vec<(Position, EventId)> {
    let (mut read, mut from) = (Vec::new(), AllFrom::Start);
    while !stop.load(Ordering::SeqCst) {
        let mut request = ReadAll::forwards().limit(50);
        request.from = from.clone();
        match store.read_all(request).await {
            Ok(page) => {
                read.extend(page.events.iter().map(|event| (event.position, event.id)));
                from = AllFrom::Checkpoint(page.next);
                if page.events.is_empty() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    read
}

/// The writer whose stream has a consumer group.
const CONSUMED: usize = 0;

/// Creates the group, and takes what it delivers, from whichever server runs it, until this is aborted.
async fn consume(store: HttpStore, consumed: Consumed) {
    let source = Source::Stream(StreamId::new(stream_of(CONSUMED)).unwrap());
    let group = GroupId::new(source, "billing").unwrap();
    let settings = Settings {
        message_timeout_ms: 500,
        max_retry_count: 1_000,
        ..Settings::default()
    };
    let create = Create::new(group.clone()).settings(settings);
    loop {
        match store.groups().create(&create).await {
            Ok(_) | Err(Error::Exists(_)) => break,
            Err(error) => eprintln!("the group is created again: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    loop {
        if let Ok(mut consumer) = store.groups().join(&group, 20, "worker").await {
            while let Some(Ok(delivery)) = consumer.next().await {
                consumed.lock().unwrap().insert(delivery.event.id);
                // It comes again if the answer does not arrive.
                let _ = consumer.ack(&delivery).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
