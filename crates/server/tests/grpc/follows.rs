//! Reads and subscriptions: where they begin, what passes their filters, and how often subscribers are told of their
//! place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use gesta_core::{
    AllPage, DeleteKind, DeleteStream, EventData, EventStore, EventStoreExt, EventType,
    ExpectedRevision, Position, ReadAll, SetStreamMetadata, StreamId, StreamMetadata, Timestamp,
};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::ReadResp;
use gesta_grpc::messages::streams::append_req;
use gesta_grpc::messages::streams::read_req::Options;
use gesta_grpc::messages::streams::read_req::options::filter_options::{
    Expression, Filter, Window,
};
use gesta_grpc::messages::streams::read_req::options::stream_options::RevisionOption;
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, CountOption, FilterOption, FilterOptions, ReadDirection, StreamOption,
    StreamOptions, all_options,
};
use gesta_grpc::messages::streams::read_resp::{CaughtUp, Content};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use gesta_server::Config;
use prost::Message;

use crate::client::Client;
use crate::connection::Open;
use crate::requests::{READ, following, identifier, read_of, reading};

/// A server, and the store behind it.
struct World {
    client: Client,
    store: Arc<MemoryStore>,
}

async fn append(store: &dyn EventStore, stream: &str, count: usize) {
    let event = || EventData::json(EventType::new("added").expect("valid"), "{}");
    let events: Vec<_> = (0..count).map(|_| event()).collect();
    let appended = store.append_to(stream, ExpectedRevision::Any, events);
    appended.await.expect("stored");
}

impl World {
    async fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let client = Client::with(Config::default(), store.clone()).await;
        Self { client, store }
    }

    async fn append(&self, stream: &str, count: usize) {
        append(&*self.store, stream, count).await;
    }

    async fn describe(&self, stream: &str) {
        let request = SetStreamMetadata {
            stream: StreamId::new(stream).expect("valid"),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(r#"{"owner":"alice"}"#.to_owned()).expect("valid"),
        };
        self.store.set_stream_metadata(request).await.expect("set");
    }

    async fn delete(&self, stream: &str, kind: DeleteKind) {
        let request = DeleteStream {
            stream: StreamId::new(stream).expect("valid"),
            expected: ExpectedRevision::Any,
            kind,
        };
        self.store.delete_stream(request).await.expect("deleted");
    }

    async fn follow(&self, options: Options) -> Open {
        let mut open = self.client.open(READ, &[]).await;
        open.send(&reading(options)[0]).await;
        open.close();
        let first = content(&mut open).await;
        assert!(matches!(first, Content::Confirmation(_)), "{first:?}");
        open
    }

    /// Returns what a read that has an end shows.
    async fn read(&self, options: Options) -> Vec<Seen> {
        let found = self.client.call(READ, &reading(options)).await;
        let contents = found.read::<ReadResp>().into_iter();
        contents.map(|found| seen(found.content)).collect()
    }
}

/// Stream, type and revision of an event.
type Seen = (String, String, u64);

fn seen(content: Option<Content>) -> Seen {
    let Some(Content::Event(found)) = content else {
        panic!("{content:?}");
    };
    let event = found.event.expect("an event");
    let stream = event.stream_identifier.expect("a stream").stream_name;
    let stream = String::from_utf8(stream.to_vec()).expect("UTF-8");
    let event_type = event.metadata["type"].clone();
    (stream, event_type, event.stream_revision)
}

async fn content(open: &mut Open) -> Content {
    let message = open.next().await.expect("the subscription goes on");
    let content = ReadResp::decode(message).expect("a message").content;
    content.expect("a content")
}

/// Returns all events up to the message that the subscription has caught up, the positions of checkpoints, and that
/// message.
async fn to_caught_up(open: &mut Open) -> (Vec<Seen>, Vec<u64>, CaughtUp) {
    let (mut events, mut checkpoints) = (Vec::new(), Vec::new());
    loop {
        match content(open).await {
            Content::Event(event) => events.push(seen(Some(Content::Event(event)))),
            Content::Checkpoint(checkpoint) => checkpoints.push(checkpoint.commit_position),
            Content::CaughtUp(caught_up) => return (events, checkpoints, caught_up),
            other => panic!("{other:?}"),
        }
    }
}

fn of_stream(options: Options, stream: &str, from: RevisionOption) -> Options {
    Options {
        stream_option: Some(StreamOption::Stream(StreamOptions {
            stream_identifier: Some(identifier(stream)),
            revision_option: Some(from),
        })),
        ..options
    }
}

fn of_all(options: Options, filter: Option<FilterOptions>) -> Options {
    Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::Start(Empty {})),
        })),
        filter_option: Some(match filter {
            Some(filter) => FilterOption::Filter(filter),
            None => FilterOption::NoFilter(Empty {}),
        }),
        ..options
    }
}

/// Makes a filter with a checkpoint after `interval` events.
fn filter(filter: Filter, interval: u32) -> FilterOptions {
    FilterOptions {
        filter: Some(filter),
        window: Some(Window::Max(interval)),
        checkpoint_interval_multiplier: 1,
    }
}

fn regex(text: &str) -> Expression {
    Expression {
        regex: text.to_owned(),
        prefix: Vec::new(),
    }
}

fn prefix(text: &str) -> Expression {
    Expression {
        regex: String::new(),
        prefix: vec![text.to_owned()],
    }
}

/// What happened: a subscription that began after a revision that the stream did not have was refused as an invalid
/// argument, where these clients wait; and later it passed over what was stored up to that revision, without a word. A
/// client that has seen such a revision has seen it before the store lost events. Goal: it waits, and is told once an
/// event is stored that it says that it has seen.
#[tokio::test]
async fn a_subscription_may_begin_beyond_the_end_of_its_stream_and_passes_over_nothing() {
    let world = World::new().await;
    world.append("cart-1", 2).await;
    world.append("gone-1", 2).await;
    world.delete("gone-1", DeleteKind::Soft).await;
    world.append("box-1", 2).await;
    for (stream, followed, told) in [
        ("cart-1", "cart-1", Some(4)),
        ("gone-1", "gone-1", Some(4)),
        ("new-1", "new-1", None),
        ("box-1", "$ce-box", Some(4)),
        ("late-1", "$ce-late", None),
    ] {
        let options = of_stream(following("x"), followed, RevisionOption::Revision(4));
        let mut open = world.follow(options).await;
        let (events, _, caught_up) = to_caught_up(&mut open).await;
        assert!(events.is_empty(), "{followed}: {events:?}");
        assert_eq!(caught_up.stream_revision, told, "{followed}");
        world.append(stream, 6).await;
        let ended = open.end().await;
        assert_eq!(ended.code, 3, "{followed}: {}", ended.message());
        let place = format!("revision 4 of stream {followed} is of an earlier history");
        assert!(ended.message().contains(&place), "{}", ended.message());
    }
    // The largest number is no revision, but the end; the one before it is a place that no stream reaches.
    let options = of_stream(
        following("x"),
        "cart-1",
        RevisionOption::Revision(u64::MAX - 1),
    );
    let mut open = world.follow(options).await;
    assert!(to_caught_up(&mut open).await.0.is_empty());
}

fn at_position(options: Options, commit_position: u64) -> Options {
    Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::Position(
                gesta_grpc::messages::streams::read_req::options::Position {
                    commit_position,
                    prepare_position: commit_position,
                },
            )),
        })),
        ..options
    }
}

/// Returns the positions of the events that a read of all events shows.
async fn positions(world: &World, options: Options) -> Vec<u64> {
    let found = world.client.call(READ, &reading(options)).await;
    let contents = found.read::<ReadResp>().into_iter();
    let position = |found: ReadResp| match found.content {
        Some(Content::Event(event)) => {
            let event = event.event.expect("an event");
            assert_eq!(event.commit_position, event.prepare_position);
            event.commit_position
        }
        other => panic!("{other:?}"),
    };
    contents.map(position).collect()
}

/// What happened: a client that went on from a position of before the store was restored passed over what stands there
/// now, without a word. Goal: its position is refused, and those of the present history lead to their events.
#[tokio::test]
async fn positions_of_an_earlier_history_are_refused() {
    let first = World::new().await;
    first.append("cart-1", 5).await;
    let all = of_all(read_of("x"), None);
    let old = positions(&first, all.clone()).await;
    assert_eq!(old, [1, 2, 3, 4, 5]);

    // The store was put back from a copy, and has grown past the position since.
    let before = first.store.incarnation().await.expect("known");
    let incarnation = before.after(Position(5), Timestamp(1_800_000_000_000_000));
    let config = gesta_memory::Config {
        incarnation,
        ..gesta_memory::Config::default()
    };
    let store = Arc::new(MemoryStore::with_config(config));
    let client = Client::with(Config::default(), store.clone()).await;
    let second = World { client, store };
    second.append("cart-1", 9).await;
    let new = positions(&second, all).await;
    let from = incarnation.positions_from();
    assert_eq!(new, (1..=9).map(|at| from + at).collect::<Vec<_>>());
    assert!(old.iter().all(|old| *old < new[0]));

    for options in [read_of("x"), following("x")] {
        let asked = reading(at_position(options, old[2]));
        let refused = second.client.call(READ, &asked).await;
        assert_eq!(refused.code, 3);
        let text = "position 3 is of an earlier history of the store";
        assert!(refused.message().contains(text), "{}", refused.message());
    }
    assert_eq!(
        positions(&second, at_position(read_of("x"), new[2])).await,
        new[2..]
    );
    assert_eq!(positions(&second, at_position(read_of("x"), 0)).await, new);
    let mut open = second.follow(at_position(following("x"), new[6])).await;
    let (events, _, caught_up) = to_caught_up(&mut open).await;
    assert_eq!(
        events.iter().map(|event| event.2).collect::<Vec<_>>(),
        [7, 8]
    );
    let end = caught_up.position.expect("a position").commit_position;
    assert_eq!(end, new[8]);
    // The greatest number is the end.
    for end in [u64::MAX, u64::MAX / 2 + 1] {
        let mut open = second.follow(at_position(following("x"), end)).await;
        assert_eq!(to_caught_up(&mut open).await.0, []);
        second.append("cart-1", 1).await;
        seen(Some(content(&mut open).await));
    }
    // A position that was handed out by nobody yet: what is stored up to it is not passed over.
    let mut open = second
        .follow(at_position(following("x"), new[8] + 100))
        .await;
    assert_eq!(to_caught_up(&mut open).await.0, []);
    second.append("cart-1", 1).await;
    let ended = open.end().await;
    assert!(
        ended.message().contains("is of an earlier history"),
        "{}",
        ended.message()
    );
}

/// What happened: a subscriber that dropped out of the live part was told a second time that it has caught up, and
/// never that it fell behind. Goal: it is told where it is when it falls behind, of a stream and of all events.
#[tokio::test]
async fn a_subscriber_is_told_that_it_fell_behind() {
    let world = World::new().await;
    world.append("cart-1", 1).await;
    let one = world.follow(following("cart-1")).await;
    let all = world.follow(of_all(following("x"), None)).await;
    let mut both = [one, all];
    for open in &mut both {
        to_caught_up(open).await;
    }
    // More than the store takes at once.
    world.append("cart-1", 1_500).await;
    for (open, is_of_all) in both.iter_mut().zip([false, true]) {
        let Content::FellBehind(told) = content(open).await else {
            panic!("not told");
        };
        assert!(told.timestamp.is_some());
        let at = told.position.map(|at| at.commit_position);
        let place = (told.stream_revision, at);
        assert_eq!(
            place,
            if is_of_all {
                (None, Some(1))
            } else {
                (Some(0), None)
            }
        );
        let (events, _, _) = to_caught_up(open).await;
        assert_eq!(events.len(), 1_500);
    }
}

/// What happened: a deleted stream was told to begin at the next revision, where these clients know a mark that stands
/// until it is written again; and the mark, when a client wrote it, was refused. Goal: a delete is the mark, in
/// whatever way it came, and once the stream has begun again its metadata say where.
#[tokio::test]
async fn a_deleted_stream_is_marked_until_it_begins_again() {
    let world = World::new().await;
    let mark = r#"{"$tb":9223372036854775807}"#;
    let metadata = async || {
        let options = Options {
            read_direction: ReadDirection::Backwards.into(),
            count_option: Some(CountOption::Count(1)),
            ..of_stream(read_of("x"), "$$cart-1", RevisionOption::End(Empty {}))
        };
        let ended = world.client.call(READ, &reading(options)).await;
        let Some(Content::Event(found)) = ended.read::<ReadResp>().remove(0).content else {
            panic!("no event");
        };
        let event = found.event.expect("an event");
        assert_eq!(event.metadata["type"], "$metadata");
        String::from_utf8(event.data.to_vec()).expect("text")
    };
    world.append("cart-1", 3).await;
    world.delete("cart-1", DeleteKind::Soft).await;
    assert_eq!(metadata().await, mark);
    world.append("cart-1", 1).await;
    assert_eq!(metadata().await, r#"{"$tb":3}"#);
    let [options, mut event] = crate::requests::appending("$$cart-1", 1);
    if let Some(append_req::Content::ProposedMessage(event)) = &mut event.content {
        event.data = bytes::Bytes::from_static(br#"{"$tb":9223372036854775807,"owner":"x"}"#);
        event
            .metadata
            .insert("type".to_owned(), "$metadata".to_owned());
    }
    let ended = world
        .client
        .call(crate::requests::APPEND, &[options, event])
        .await;
    assert_eq!(ended.code, 0, "{}", ended.message());
    assert_eq!(
        metadata().await,
        r#"{"$tb":9223372036854775807,"owner":"x"}"#
    );
    let gone = world.client.call(READ, &reading(read_of("cart-1"))).await;
    let gone = gone.read::<ReadResp>().remove(0).content;
    assert!(matches!(gone, Some(Content::StreamNotFound(_))), "{gone:?}");
    world.append("cart-1", 1).await;
    assert_eq!(metadata().await, r#"{"$tb":4,"owner":"x"}"#);
    assert_eq!(world.read(read_of("cart-1")).await[0].2, 4);
}

/// Filters compared the events as they are stored, and clients are shown others: no filter found a tombstone. Goal:
/// what passes is what is shown, in reads and in subscriptions, also if the store does a part of the filter.
#[tokio::test]
async fn filters_see_what_clients_see() {
    let world = World::new().await;
    world.append("cart-1", 1).await;
    world.delete("cart-1", DeleteKind::Soft).await;
    world.append("cart-2", 1).await;
    world.delete("cart-2", DeleteKind::Tombstone).await;
    let event = |stream: &str, event_type: &str, revision| {
        (stream.to_owned(), event_type.to_owned(), revision)
    };
    let deleted = event("$$cart-1", "$metadata", 0);
    let closed = event("cart-2", "$streamDeleted", i64::MAX.cast_unsigned());
    let added = [event("cart-1", "added", 0), event("cart-2", "added", 0)];
    let named = [added.as_slice(), std::slice::from_ref(&closed)].concat();
    for (of, passing) in [
        (
            Filter::EventType(prefix("$streamDeleted")),
            vec![closed.clone()],
        ),
        (
            Filter::EventType(regex(r"^\$metadata$")),
            vec![deleted.clone()],
        ),
        (Filter::EventType(prefix("$tombstone")), Vec::new()),
        (Filter::EventType(prefix("$deleted")), Vec::new()),
        (Filter::StreamIdentifier(prefix("cart-")), named.clone()),
        (Filter::StreamIdentifier(regex("^cart-")), named),
        (
            Filter::StreamIdentifier(regex(r"^\$\$")),
            vec![deleted.clone()],
        ),
        (Filter::StreamIdentifier(prefix("$$cart-")), vec![deleted]),
    ] {
        let found = world
            .read(of_all(read_of("x"), Some(filter(of.clone(), 32))))
            .await;
        assert_eq!(found, passing, "{of:?}");
        for interval in [1, 1_000_000] {
            let options = of_all(following("x"), Some(filter(of.clone(), interval)));
            let mut open = world.follow(options).await;
            let (found, ..) = to_caught_up(&mut open).await;
            assert_eq!(found, passing, "{of:?} {interval}");
        }
    }
}

/// A filter by the beginning of names was the store's to carry out, which tells of its place every thousand events
/// only.
/// Goal: checkpoints come as often as the client asks, whatever its filter is, and each is a new place.
#[tokio::test]
async fn checkpoints_come_as_often_as_the_client_asks() {
    let world = World::new().await;
    world.append("others-1", 50).await;
    world.append("passing-1", 1).await;
    world.append("others-1", 9).await;
    for expression in [prefix("passing-"), regex("^passing-")] {
        let options = filter(Filter::StreamIdentifier(expression), 5);
        let mut open = world.follow(of_all(following("x"), Some(options))).await;
        let (events, checkpoints, caught_up) = to_caught_up(&mut open).await;
        assert_eq!(events.len(), 1);
        // One for each interval; the last one may be just before the end, which is told as well.
        assert!(checkpoints.len() >= 12, "{checkpoints:?}");
        assert!(
            checkpoints.is_sorted_by(|one, next| one < next),
            "{checkpoints:?}"
        );
        let end = caught_up.position.expect("a position").commit_position;
        assert_eq!(checkpoints.last(), Some(&end));
        // And on while nothing passes.
        world.append("others-1", 5).await;
        let Content::Checkpoint(live) = content(&mut open).await else {
            panic!("a checkpoint");
        };
        assert!(live.commit_position > end);
    }
}

/// Goal: what groups on all events keep of themselves is in no read of all events, and takes no place in its count;
/// what groups on streams keep is there.
#[tokio::test]
async fn the_state_of_groups_on_all_events_is_not_shown() {
    let world = World::new().await;
    let shown = "$persistentsubscription-cart-1::mail-checkpoint";
    world.append("cart-1", 1).await;
    world
        .append("$persistentsubscription-$all::mail-checkpoint", 2)
        .await;
    world.append(shown, 1).await;
    world
        .append("$persistentsubscription-$all::mail-parked", 1)
        .await;
    let expected = ["cart-1", shown];
    let streams = |found: Vec<Seen>| found.into_iter().map(|(stream, ..)| stream);
    for count in [2, u64::MAX] {
        let options = Options {
            count_option: Some(CountOption::Count(count)),
            ..of_all(read_of("x"), None)
        };
        let found: Vec<_> = streams(world.read(options).await).collect();
        assert_eq!(found, expected, "{count}");
    }
    let backwards = Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(all_options::AllOption::End(Empty {})),
        })),
        read_direction: ReadDirection::Backwards.into(),
        count_option: Some(CountOption::Count(1)),
        ..read_of("x")
    };
    let newest: Vec<_> = streams(world.read(backwards).await).collect();
    assert_eq!(newest, [shown]);
    let every = Some(filter(Filter::EventType(prefix("added")), 1));
    for filter in [None, every] {
        let mut open = world.follow(of_all(following("x"), filter)).await;
        let (found, ..) = to_caught_up(&mut open).await;
        assert_eq!(streams(found).collect::<Vec<_>>(), expected);
    }
    // The stream itself can be read.
    let own = world
        .read(read_of("$persistentsubscription-$all::mail-parked"))
        .await;
    assert_eq!(own.len(), 1);
}

/// Only a page with the tombstone in it was refused. Goal: metadata of a closed stream are closed with it, whatever of
/// them a read or a subscription asks for.
#[tokio::test]
async fn metadata_end_with_their_stream() {
    let world = World::new().await;
    world.append("cart-1", 1).await;
    for _ in 0..3 {
        world.describe("cart-1").await;
    }
    let start = || RevisionOption::Start(Empty {});
    let one = |direction: ReadDirection, from| Options {
        read_direction: direction.into(),
        count_option: Some(CountOption::Count(1)),
        ..of_stream(read_of("x"), "$$cart-1", from)
    };
    let reads = [
        one(ReadDirection::Forwards, start()),
        one(ReadDirection::Backwards, RevisionOption::Revision(1)),
        one(ReadDirection::Backwards, RevisionOption::End(Empty {})),
        read_of("$$cart-1"),
    ];
    for options in &reads {
        assert!(!world.read(options.clone()).await.is_empty());
    }
    let mut live = world
        .follow(of_stream(following("x"), "$$cart-1", start()))
        .await;
    assert_eq!(to_caught_up(&mut live).await.0.len(), 3);
    world.delete("cart-1", DeleteKind::Tombstone).await;
    let ended = live.end().await;
    assert_eq!((ended.code, ended.messages.len()), (9, 0));
    for options in reads {
        let ended = world.client.call(READ, &reading(options)).await;
        assert_eq!((ended.code, ended.messages.len()), (9, 0));
        assert_eq!(ended.trailers["exception"], "stream-deleted");
    }
    for from in [
        start(),
        RevisionOption::End(Empty {}),
        RevisionOption::Revision(9),
    ] {
        let open = world
            .follow(of_stream(following("x"), "$$cart-1", from))
            .await;
        let ended = open.end().await;
        assert_eq!((ended.code, ended.messages.len()), (9, 0));
    }
}

/// Goal: there are no indexes, and who asks for one is told so.
#[tokio::test]
async fn an_index_is_not_found() {
    let world = World::new().await;
    let options = filter(Filter::StreamIdentifier(prefix("$idx-ce-cart")), 32);
    for options in [
        of_all(read_of("x"), Some(options.clone())),
        of_all(following("x"), Some(options)),
    ] {
        let ended = world.client.call(READ, &reading(options)).await;
        assert_eq!(ended.code, 5, "{}", ended.message());
        assert_eq!(ended.trailers["exception"], "index-not-found");
        assert_eq!(ended.trailers["index-name"], "$idx-ce-cart");
    }
}

/// A store that counts its reads of all events.
struct Counting {
    inner: MemoryStore,
    reads: AtomicUsize,
}

#[async_trait]
impl Wrapper for Counting {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn read_all(&self, request: ReadAll) -> gesta_core::Result<AllPage> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.read_all(request).await
    }
}

/// A read of one event asked the store for one event at a time, however many hidden ones lay before it. Goal: what is
/// passed over is read in large pages.
#[tokio::test]
async fn events_that_are_not_shown_are_passed_over_in_large_pages() {
    let store = Arc::new(Outer(Counting {
        inner: MemoryStore::new(),
        reads: AtomicUsize::new(0),
    }));
    let client = Client::with(Config::default(), store.clone()).await;
    let group = "$persistentsubscription-$all::mail-checkpoint";
    for (stream, count) in [(group, 300), ("cart-1", 3)] {
        append(&*store, stream, count).await;
    }
    let before = store.reads.load(Ordering::SeqCst);
    let options = Options {
        count_option: Some(CountOption::Count(2)),
        ..of_all(read_of("x"), None)
    };
    let ended = client.call(READ, &reading(options)).await;
    assert_eq!((ended.code, ended.messages.len()), (0, 2));
    assert_eq!(store.reads.load(Ordering::SeqCst) - before, 2);
}
