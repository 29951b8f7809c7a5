//! What the cases share: short functions for values, deadlines, clocks to set, a reader of subscriptions.

use std::future::Future;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use gesta_core::limits::{TAG_BYTES_MAX, TAGS_MAX};
use gesta_core::{
    AllFrom, Appended, Checkpoint, Clock, DeleteKind, DeleteStream, Deleted, EventData, EventId,
    EventStore, EventStoreExt, EventType, ExpectedRevision, Filter, ListStreams, MetadataSet,
    Query, ReadAll, ReadStream, RecordedEvent, Result, Revision, SetStreamMetadata, SharedEvent,
    StreamId, StreamInfo, StreamMetadata, Subscribe, SubscribeFrom, SubscribeTo, Subscription,
    SubscriptionMessage, SystemClock, Tag, Tags, Timestamp,
};

use crate::factory::StoreFactory;

pub use ExpectedRevision::{Any, Exact, NoStream, StreamExists};
pub use gesta_core::ErrorKind;

/// How long a case waits for one thing to happen. An unoptimised client takes 5 s for an append of the largest events
/// (48 MB in base64), and half a minute beside other tests on slow processors.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Waits for a future, but not for ever.
///
/// # Panics
/// If the future is not ready within [`DEADLINE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: did not happen within {DEADLINE:?}"),
    }
}

/// Pause between two looks at a condition.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until something is so, but not for longer than this.
///
/// # Panics
/// If it is not so in time.
pub async fn until(what: &str, patience: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(LOOK).await;
        }
    };
    let waited = tokio::time::timeout(patience, waiting).await;
    assert!(waited.is_ok(), "never within {patience:?}: {what}");
}

/// Makes the name of a stream.
#[must_use]
pub fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("a valid stream name")
}

/// Makes a tag.
#[must_use]
pub fn tag(name: &str) -> Tag {
    Tag::new(name).expect("a valid tag")
}

/// Makes as many tags as an event can carry, each as long as a tag can be: 8 KiB.
#[must_use]
pub fn all_tags() -> Tags {
    let tag = |number| tag(&format!("{number:02}{}", "x".repeat(TAG_BYTES_MAX - 2)));
    Tags::new((0..TAGS_MAX).map(tag).collect()).expect("at the limit")
}

/// Makes the claim that this is the last revision.
#[must_use]
pub fn exact(revision: u64) -> ExpectedRevision {
    Exact(Revision(revision))
}

/// Makes a small event of this type with a new id.
#[must_use]
pub fn event(event_type: &str) -> EventData {
    let event_type = EventType::new(event_type).expect("a valid event type");
    EventData::json(event_type, r#"{"n":1}"#).with_id(EventId::random())
}

/// Makes a small event with tags.
#[must_use]
pub fn tagged(event_type: &str, tags: &[&str]) -> EventData {
    let tags = tags.iter().map(|name| tag(name)).collect();
    event(event_type).with_tags(Tags::new(tags).expect("different tags"))
}

/// Makes this many small events with new ids.
#[must_use]
pub fn events(count: usize) -> Vec<EventData> {
    (0..count).map(|_| event("happened")).collect()
}

/// Appends events.
///
/// # Panics
/// If the append fails.
pub async fn append(
    store: &dyn EventStore,
    stream: &str,
    expected: ExpectedRevision,
    events: Vec<EventData>,
) -> Appended {
    within("append", store.append_to(stream, expected, events))
        .await
        .unwrap_or_else(|error| panic!("append to {stream:?} expecting {expected}: {error}"))
}

/// Deletes a stream.
///
/// # Errors
/// Those of the store.
pub async fn delete(
    store: &dyn EventStore,
    name: &str,
    expected: ExpectedRevision,
    kind: DeleteKind,
) -> Result<Deleted> {
    let request = DeleteStream {
        stream: stream(name),
        expected,
        kind,
    };
    within("delete", store.delete_stream(request)).await
}

/// Sets the metadata of a stream.
///
/// # Errors
/// Those of the store.
pub async fn set_metadata(
    store: &dyn EventStore,
    name: &str,
    expected: ExpectedRevision,
    json: &str,
) -> Result<MetadataSet> {
    let request = SetStreamMetadata {
        stream: stream(name),
        expected,
        metadata: StreamMetadata::parse(json.to_owned()).expect("valid metadata"),
    };
    within("set metadata", store.set_stream_metadata(request)).await
}

/// Returns the revisions that a reader of the stream sees.
///
/// # Panics
/// If the stream cannot be read.
pub async fn revisions(store: &dyn EventStore, stream: &str) -> Vec<u64> {
    let events = within("read stream", store.read_whole_stream(stream)).await;
    let events = events.unwrap_or_else(|error| panic!("{stream:?}: {error}"));
    events.iter().map(|event| event.revision.0).collect()
}

/// Reads the first page of a stream.
///
/// # Errors
/// Those of the store.
pub async fn read(store: &dyn EventStore, name: &str) -> Result<gesta_core::StreamPage> {
    within(
        "read stream",
        store.read_stream(ReadStream::forwards(stream(name))),
    )
    .await
}

/// Reads all events, in the order of each log.
///
/// # Panics
/// If they cannot be read.
pub async fn everything(store: &dyn EventStore) -> Vec<RecordedEvent> {
    within("read everything", store.read_everything())
        .await
        .expect("readable")
}

/// Reads all pages of a request up to the end. Returns the events and the checkpoint at the end.
///
/// # Panics
/// If a page cannot be read, breaks its limit, or does not move on.
pub async fn all_pages(
    store: &dyn EventStore,
    mut request: ReadAll,
) -> (Vec<RecordedEvent>, Checkpoint) {
    let mut events = Vec::new();
    loop {
        let page = within("read all", store.read_all(request.clone())).await;
        let page = page.expect("readable");
        assert!(page.events.len() <= request.limit, "more than the limit");
        events.extend(page.events);
        if page.end {
            return (events, page.next);
        }
        let next = AllFrom::Checkpoint(page.next);
        assert_ne!(request.from, next, "a page that is not the end moves on");
        request.from = next;
    }
}

/// Returns the events log by log, each log in the order in which it was read: pages of several logs mix them.
#[must_use]
pub fn by_log(mut events: Vec<RecordedEvent>) -> Vec<RecordedEvent> {
    events.sort_by_key(|event| event.log);
    events
}

/// Reads all pages of the list of streams, `limit` at a time.
///
/// # Panics
/// If a page cannot be read or breaks its limit.
pub async fn list(store: &dyn EventStore, prefix: &str, limit: usize) -> Vec<StreamInfo> {
    let mut request = ListStreams {
        prefix: prefix.into(),
        after: None,
        limit,
    };
    let mut streams = Vec::new();
    loop {
        let page = within("list streams", store.list_streams(request.clone())).await;
        let page = page.expect("listed");
        assert!(page.streams.len() <= limit, "more than the limit");
        streams.extend(page.streams);
        match page.next {
            None => return streams,
            next => {
                assert!(next > request.after, "a page moves on");
                request.after = next;
            }
        }
    }
}

/// Returns the names of listed streams.
#[must_use]
pub fn names(streams: &[StreamInfo]) -> Vec<&str> {
    streams.iter().map(|info| info.stream.as_str()).collect()
}

/// Makes a query by event types.
#[must_use]
pub fn types(names: &[&str]) -> Query {
    Query {
        types: names
            .iter()
            .map(|name| name.parse().expect("valid"))
            .collect(),
        ..Query::default()
    }
}

/// Makes a query by tags, all of which an event must carry.
#[must_use]
pub fn tags(names: &[&str]) -> Query {
    Query {
        tags: names.iter().map(|name| tag(name)).collect(),
        ..Query::default()
    }
}

/// Makes a query by prefixes of stream names.
#[must_use]
pub fn prefixes(prefixes: &[&str]) -> Query {
    Query {
        stream_prefixes: prefixes.iter().map(|&prefix| prefix.into()).collect(),
        ..Query::default()
    }
}

/// Makes a query by categories.
#[must_use]
pub fn categories(categories: &[&str]) -> Query {
    Query {
        categories: categories.iter().map(|&category| category.into()).collect(),
        ..Query::default()
    }
}

/// Fails unless the result is an error of this kind.
macro_rules! assert_kind {
    ($result:expr, $kind:pat $(if $guard:expr)?) => {{
        match $result {
            Ok(answer) => panic!("expected {}, found {answer:?}", stringify!($kind)),
            Err(error) => assert!(
                matches!(error.kind(), $kind $(if $guard)?),
                "expected {}, found {error:?}",
                stringify!($kind)
            ),
        }
    }};
}

pub(crate) use assert_kind;

/// Fails unless the result is a wrong expected revision with this actual revision.
///
/// # Panics
/// If the result is anything else.
#[track_caller]
pub fn assert_wrong<T: std::fmt::Debug>(
    result: Result<T>,
    name: &str,
    expected: ExpectedRevision,
    actual: Option<u64>,
) {
    let error = result.expect_err("a wrong expected revision");
    let wrong = gesta_core::ErrorKind::WrongExpectedRevision {
        stream: stream(name),
        expected,
        actual: actual.map(Revision),
    };
    assert_eq!(*error.kind(), wrong);
}

/// A clock that stands still until it is set.
#[derive(Debug)]
pub struct TestClock(AtomicI64);

impl TestClock {
    /// Makes a clock that shows this many seconds after a moment in 2026.
    #[must_use]
    pub fn at(seconds: i64) -> Self {
        let clock = Self(AtomicI64::new(0));
        clock.set(seconds);
        clock
    }

    /// Sets the clock to this many seconds after the same moment.
    pub fn set(&self, seconds: i64) {
        let micros = 1_790_000_000_000_000 + seconds * 1_000_000;
        self.0.store(micros, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// A clock that differs from another one by as much as a test says. Its clones differ by the same.
#[derive(Clone)]
pub struct OffsetClock {
    right: Arc<dyn Clock>,
    micros: Arc<AtomicI64>,
}

impl OffsetClock {
    /// Makes a clock that agrees with another one so far.
    #[must_use]
    pub fn of(right: Arc<dyn Clock>) -> Self {
        Self {
            right,
            micros: Arc::default(),
        }
    }

    /// Sets the clock this many microseconds ahead of the other one; behind it if the number is negative.
    pub fn set(&self, micros: i64) {
        self.micros.store(micros, Ordering::SeqCst);
    }
}

impl Default for OffsetClock {
    fn default() -> Self {
        Self::of(Arc::new(SystemClock))
    }
}

impl std::fmt::Debug for OffsetClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("OffsetClock");
        shown.field("micros", &self.micros).finish_non_exhaustive()
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.right.now().0 + self.micros.load(Ordering::SeqCst))
    }
}

/// A subscription that is read with deadlines.
#[derive(Debug)]
pub struct Follower {
    subscription: Subscription,
    /// The checkpoint of the last message.
    pub checkpoint: Option<Checkpoint>,
}

impl Follower {
    /// Subscribes.
    ///
    /// # Panics
    /// If the store refuses.
    pub async fn start(store: &dyn EventStore, to: SubscribeTo, from: SubscribeFrom) -> Self {
        let subscription = within("subscribe", store.subscribe(Subscribe { to, from })).await;
        Self {
            subscription: subscription.expect("subscribed"),
            checkpoint: None,
        }
    }

    /// Subscribes to all events.
    pub async fn all(store: &dyn EventStore, from: SubscribeFrom) -> Self {
        Self::start(store, SubscribeTo::All(Filter::ALL), from).await
    }

    /// Subscribes to the events that pass a filter.
    pub async fn filtered(store: &dyn EventStore, query: Query, from: SubscribeFrom) -> Self {
        Self::start(store, SubscribeTo::All(Filter::query(query)), from).await
    }

    /// Subscribes to one stream.
    pub async fn stream(store: &dyn EventStore, name: &str, from: SubscribeFrom) -> Self {
        Self::start(store, SubscribeTo::Stream(stream(name)), from).await
    }

    /// Returns the next message or error; `None` once the subscription has ended.
    pub async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        within("a message of a subscription", self.subscription.next()).await
    }

    /// Returns the next message.
    ///
    /// # Panics
    /// If the subscription ends.
    pub async fn message(&mut self) -> SubscriptionMessage {
        let message = self.next().await.expect("still open").expect("a message");
        let (SubscriptionMessage::Event { checkpoint, .. }
        | SubscriptionMessage::Checkpoint(checkpoint)
        | SubscriptionMessage::CaughtUp(checkpoint)
        | SubscriptionMessage::FellBehind(checkpoint)) = &message;
        self.checkpoint = Some(checkpoint.clone());
        message
    }

    /// Returns the next event.
    pub async fn event(&mut self) -> SharedEvent {
        loop {
            if let SubscriptionMessage::Event { event, .. } = self.message().await {
                return event;
            }
        }
    }

    /// Returns the next `count` events.
    pub async fn events(&mut self, count: usize) -> Vec<SharedEvent> {
        let mut events = Vec::with_capacity(count);
        while events.len() < count {
            events.push(self.event().await);
        }
        events
    }

    /// Returns the events up to the next message that the subscription has caught up.
    pub async fn until_caught_up(&mut self) -> Vec<SharedEvent> {
        let mut events = Vec::new();
        loop {
            match self.message().await {
                SubscriptionMessage::Event { event, .. } => events.push(event),
                SubscriptionMessage::Checkpoint(_) | SubscriptionMessage::FellBehind(_) => {}
                SubscriptionMessage::CaughtUp(_) => return events,
            }
        }
    }

    /// Returns the error that ends the subscription, skipping messages before it.
    ///
    /// # Panics
    /// If the subscription ends without an error.
    pub async fn error(&mut self) -> gesta_core::Error {
        loop {
            if let Err(error) = self.next().await.expect("an error before the end") {
                return error;
            }
        }
    }
}

/// Writes a line that the test harness does not hide.
pub(crate) fn say(line: &str) {
    // If standard error is closed, there is nobody to tell.
    // One call, so that the lines of parallel tests do not mix.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Reports that a case was skipped. The line is written past the test harness, which would hide it.
pub(crate) fn skip(factory: &dyn StoreFactory, lacking: &str) {
    // The test harness names the thread after the test.
    let thread = std::thread::current();
    let case = thread.name().unwrap_or("a case");
    say(&format!(
        "SKIPPED on {}: {case} needs {lacking}",
        factory.name()
    ));
}
