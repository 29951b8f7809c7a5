//! Tests groups whose store has lost events, by a fail-over or because it was put back from a copy.
//!
//! What happened: a group went on from its place of before the loss, and passed over what stood there afterwards,
//! without a word. Now it goes on from what is left, or it is halted until an administrator says where it goes on. The
//! tests control the time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    Append, DeleteKind, DeleteStream, EventData, EventId, EventStore, EventStoreExt, EventType,
    ExpectedRevision, Filter, LogId, ReadStream, SetStreamMetadata, StreamId, StreamMetadata,
    StreamPage, log_of,
};
use gesta_groups::{
    Action, Config, Consumer, Create, Error, GroupId, Groups, Identity, JoinGroup, ResetTo,
    Settings, Source, Start, Which,
};
use gesta_kit::faulty::{FaultyStore, World};
use gesta_kit::support::events;
use gesta_kit::{Outer, Wrapper};

const STREAM: &str = "cart-1";
const LOG: LogId = LogId(0);

fn process(store: &FaultyStore) -> Groups {
    let shared: Arc<dyn EventStore> = store.share();
    Groups::start(shared, Config::default())
}

fn on_stream(stream: &str) -> GroupId {
    let stream = StreamId::new(stream).expect("valid");
    GroupId::new(Source::Stream(stream), "mail").expect("valid")
}

fn on_all() -> GroupId {
    GroupId::new(Source::All, "mail").expect("valid")
}

async fn create(groups: &Groups, group: &GroupId, start: Start) {
    let create = Create {
        group: group.clone(),
        settings: Settings {
            start,
            ..Settings::default()
        },
        filter: Filter::ALL,
    };
    groups.create(create).await.expect("created");
}

async fn try_join(groups: &Groups, group: &GroupId) -> Result<Consumer, Error> {
    let join = JoinGroup {
        buffer: 1_000,
        identity: Identity::default(),
        patience: Duration::ZERO,
    };
    groups.join(group, join).await
}

async fn append(store: &FaultyStore, stream: &str, events: Vec<EventData>) {
    let appended = store.append_to(stream, ExpectedRevision::Any, events).await;
    appended.expect("stored");
}

/// Acknowledges what comes until nothing comes any more, and returns the revisions of the events of the stream.
async fn work_off(consumer: &mut Consumer, stream: &str) -> Vec<u64> {
    let mut found = Vec::new();
    while let Ok(next) = tokio::time::timeout(Duration::from_secs(20), consumer.next()).await {
        let delivery = next.expect("it goes on");
        if delivery.event.stream.as_str() == stream {
            found.push(delivery.event.revision.0);
        }
        let acked = consumer.ack(vec![Which::Delivery(delivery.number)]);
        assert_eq!(acked.await.expect("answered"), 1);
    }
    found
}

/// Waits for the end of the consumer, whatever comes before.
async fn end(consumer: &mut Consumer) -> Error {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(60), consumer.next());
        if let Err(error) = next.await.expect("it is told") {
            return error;
        }
    }
}

async fn checkpoints(store: &FaultyStore, group: &GroupId) -> Vec<serde_json::Value> {
    let stream = group.checkpoint_stream();
    let events = store.read_whole_stream(stream.as_str()).await;
    let document = |event: &gesta_core::RecordedEvent| serde_json::from_slice(&event.data);
    let documents = events.expect("readable");
    documents
        .iter()
        .map(|event| document(event).expect("JSON"))
        .collect()
}

/// A fail-over loses events that were acknowledged since the last checkpoint, which survives.
async fn a_lossy_fail_over(group: GroupId) {
    let world = World::new(1);
    let store = world.store();
    let groups = process(&store);
    create(&groups, &group, Start::Start).await;
    append(&store, STREAM, events(20)).await;
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    assert_eq!(
        work_off(&mut consumer, STREAM).await,
        (0..20).collect::<Vec<_>>()
    );
    let mut take = async |count: usize| {
        append(&store, STREAM, events(count)).await;
        for _ in 0..count {
            let delivery = consumer.next().await.expect("delivered");
            let acked = consumer.ack(vec![Which::Delivery(delivery.number)]);
            assert_eq!(acked.await.expect("answered"), 1);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    // A checkpoint is due, and written at once.
    take(15).await;
    let survives = world.end(LOG).position.0;
    // More are delivered and acknowledged before the next one.
    take(100).await;
    let lost = world.end(LOG).position.0 - survives;
    assert_eq!(lost, 100, "no checkpoint was written since");
    let before = checkpoints(&store, &group).await;
    world.lose_newest(LOG, 100);
    store.begin_history();
    let told = end(&mut consumer).await;
    assert!(matches!(told, Error::HistoryChanged(_)), "{told}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The group that stopped has written nothing into the new history.
    assert_eq!(checkpoints(&store, &group).await, before);
    append(&store, STREAM, events(150)).await;
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    // From the checkpoint on, which some of the 15 have passed.
    let found = work_off(&mut consumer, STREAM).await;
    assert!((20..=35).contains(&found[0]), "{found:?}");
    assert_eq!(found, (found[0]..185).collect::<Vec<_>>());
    assert_eq!(groups.halted(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_on_a_stream_delivers_what_comes_after_a_loss() {
    a_lossy_fail_over(on_stream(STREAM)).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_on_all_events_delivers_what_comes_after_a_loss() {
    a_lossy_fail_over(on_all()).await;
}

/// A store of two logs, and a stream in another log than the checkpoints of the group on it.
fn two_logs() -> (Arc<World>, String, GroupId, LogId) {
    let world = World::new(2);
    let found = (0..).find_map(|n| {
        let stream = format!("cart-{n}");
        let group = on_stream(&stream);
        let log = log_of(&StreamId::new(stream.as_str()).expect("valid"), 2);
        (log != log_of(&group.checkpoint_stream(), 2)).then_some((stream, group, log))
    });
    let (stream, group, log) = found.expect("one of them");
    (world, stream, group, log)
}

/// Goal: a restore of one of several databases is noticed, even if nobody began a new incarnation, and the group says
/// so until it is told where to go on.
async fn the_source_is_restored(notice: bool) {
    let (world, stream, group, log) = two_logs();
    let store = world.store();
    let groups = process(&store);
    create(&groups, &group, Start::Start).await;
    append(&store, &stream, events(20)).await;
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    assert_eq!(work_off(&mut consumer, &stream).await.len(), 20);
    drop(consumer);
    groups.shutdown().await;

    world.lose_newest(log, 15);
    let store = world.store();
    if notice {
        store.begin_history();
    }
    let groups = process(&store);
    // Before the stream has grown past the place, and after.
    for grown in [0, 30] {
        append(&store, &stream, events(grown.max(1))).await;
        let error = try_join(&groups, &group).await.expect_err("halted");
        let Error::Halted { halt, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(halt.place, 20);
        let info = groups.info(&group).await.expect("known");
        assert_eq!(info.halted.as_ref(), Some(halt));
        assert_eq!((info.checkpoint, groups.halted()), (Some(20), 1));
        let shown = gesta_groups::document::Group::from(&info);
        assert_eq!(shown.status, "halted");
    }
    let place = groups.reset(&group, ResetTo::At(5)).await.expect("moved");
    assert_eq!((place, groups.halted()), (5, 0));
    let info = groups.info(&group).await.expect("known");
    assert_eq!((info.checkpoint, info.halted), (Some(5), None));
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    let found = work_off(&mut consumer, &stream).await;
    assert_eq!(found, (5..36).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_source_was_restored_is_halted() {
    the_source_is_restored(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_source_was_restored_in_silence_is_halted() {
    the_source_is_restored(false).await;
}

/// Goal: whoever answers a halted group has all the places to choose from, and a place that cannot be is refused.
#[tokio::test(start_paused = true)]
async fn a_group_goes_on_where_it_is_told() {
    let (world, stream, group, log) = two_logs();
    let store = world.store();
    let groups = process(&store);
    create(&groups, &group, Start::Start).await;
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    // Several checkpoints, so that there is one to go back to.
    for _ in 0..5 {
        append(&store, &stream, events(20)).await;
        assert_eq!(work_off(&mut consumer, &stream).await.len(), 20);
    }
    drop(consumer);
    groups.shutdown().await;
    world.lose_newest(log, 30);
    let store = world.store();
    append(&store, &stream, events(60)).await;
    let groups = process(&store);
    let error = try_join(&groups, &group).await.expect_err("halted");
    let Error::Halted { halt, .. } = error else {
        panic!("{error}");
    };
    // One of the checkpoints before the loss, and the last of them that the group remembers.
    let survives = halt.surviving.expect("one survives");
    assert!(
        (20..=70).contains(&survives) && survives % 20 == 0,
        "{survives}"
    );
    let at = groups.reset(&group, ResetTo::Surviving).await;
    assert_eq!(at.expect("moved"), survives);
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    let first = consumer.next().await.expect("delivered");
    assert_eq!(first.event.revision.0, survives);
    for (to, first) in [
        (ResetTo::Start, Some(0)),
        (ResetTo::At(129), Some(129)),
        (ResetTo::At(130), None),
        (ResetTo::End, None),
    ] {
        groups.reset(&group, to).await.expect("moved");
        let told = end(&mut consumer).await;
        assert!(matches!(told, Error::Dropped(_)), "{told}");
        consumer = try_join(&groups, &group).await.expect("joined");
        let next = tokio::time::timeout(Duration::from_secs(20), consumer.next());
        let next = next.await.ok().map(|next| next.expect("it runs"));
        let found = next.map(|delivery| delivery.event.revision.0);
        assert_eq!(found, first, "{to:?}");
    }
    let error = groups.reset(&group, ResetTo::At(131)).await;
    let text = error.expect_err("beyond the end").to_string();
    assert_eq!(text, "to.at must be at most 130, the next place, found 131");
    let missing = groups.reset(&on_stream("other"), ResetTo::Start).await;
    assert!(matches!(missing, Err(Error::NotFound(_))));
}

/// Goal: a group that knows no place that survives says so.
#[tokio::test(start_paused = true)]
async fn a_group_that_knows_no_place_says_so() {
    let (world, stream, group, log) = two_logs();
    let store = world.store();
    let groups = process(&store);
    append(&store, &stream, events(20)).await;
    // It begins at the end, and has no checkpoint yet.
    create(&groups, &group, Start::End).await;
    world.lose_newest(log, 15);
    store.begin_history();
    append(&store, &stream, events(30)).await;
    let error = try_join(&groups, &group).await.expect_err("halted");
    assert!(
        matches!(&error, Error::Halted { halt, .. } if halt.place == 20 && halt.surviving.is_none())
    );
    let error = groups.reset(&group, ResetTo::Surviving).await;
    let text = error.expect_err("none").to_string();
    assert!(
        text.starts_with("to must be start, end or a place"),
        "{text}"
    );
    groups.reset(&group, ResetTo::At(5)).await.expect("moved");
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    assert_eq!(work_off(&mut consumer, &stream).await.len(), 30);
}

/// Goal: an event that a client stores again after a loss, with its id and even at its place, is not taken for a proof
/// that nothing was lost.
#[tokio::test(start_paused = true)]
async fn an_event_that_was_stored_again_proves_nothing() {
    let (world, stream, group, log) = two_logs();
    let store = world.store();
    let groups = process(&store);
    create(&groups, &group, Start::Start).await;
    append(&store, &stream, events(19)).await;
    let last = events(1);
    append(&store, &stream, last.clone()).await;
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    assert_eq!(work_off(&mut consumer, &stream).await.len(), 20);
    drop(consumer);
    groups.shutdown().await;
    world.lose_newest(log, 15);
    let store = world.store();
    append(&store, &stream, events(14)).await;
    append(&store, &stream, last).await;
    let error = try_join(&process(&store), &group)
        .await
        .expect_err("halted");
    assert!(matches!(error, Error::Halted { .. }), "{error}");
}

/// Goal: what an older version has stored is believed, unless the store tells that it was put back since.
#[tokio::test(start_paused = true)]
async fn checkpoints_of_older_versions_are_read() {
    let world = World::new(1);
    let store = world.store();
    let groups = process(&store);
    let group = on_stream(STREAM);
    create(&groups, &group, Start::Start).await;
    append(&store, STREAM, events(20)).await;
    let configuration = group.configuration_stream();
    let configured = store.read_whole_stream(configuration.as_str()).await;
    let configured = configured.expect("readable").pop().expect("one");
    let document: serde_json::Value = serde_json::from_slice(&configured.data).expect("JSON");
    let old = format!(
        r#"{{"life":{},"run":"00000000-0000-0000-0000-000000000002","next":12}}"#,
        document["life"]
    );
    let old = EventData::json(
        EventType::new("$SubscriptionCheckpoint").expect("valid"),
        old,
    );
    append(
        &store,
        group.checkpoint_stream().as_str(),
        vec![old.with_id(EventId::random())],
    )
    .await;
    assert_eq!(groups.info(&group).await.expect("known").halted, None);
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    // From then on the place can be recognised.
    let claim = checkpoints(&store, &group).await.pop().expect("a claim");
    assert_eq!(
        (claim["next"].as_u64(), claim["marks"][0]["at"].as_u64()),
        (Some(12), Some(11))
    );
    let found = work_off(&mut consumer, STREAM).await;
    assert_eq!(found, (12..20).collect::<Vec<_>>());
}

/// Goal: an event that stands at the place of a lost one, and is parked as that one was, is parked. And a link to a
/// lost event is not taken for one to the event that stands there now.
#[tokio::test(start_paused = true)]
async fn what_stands_at_the_place_of_a_parked_event_is_parked_itself() {
    let (world, stream, group, log) = two_logs();
    let store = world.store();
    let groups = process(&store);
    create(&groups, &group, Start::Start).await;
    let park_all = async |count: usize| {
        append(&store, &stream, events(count)).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        for _ in 0..count {
            let delivery = consumer.next().await.expect("delivered");
            let which = vec![Which::Delivery(delivery.number)];
            let parked = consumer.nack(which, Action::Park, "").await;
            assert_eq!(parked.expect("answered"), 1);
        }
        while groups.info(&group).await.expect("known").checkpoint < Some(10) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    park_all(10).await;
    world.lose_newest(log, 10);
    store.begin_history();
    groups.restart_all().await.expect("stopped");
    groups.reset(&group, ResetTo::Start).await.expect("moved");
    park_all(10).await;
    assert_eq!(groups.info(&group).await.expect("known").parked, 20);
    groups.replay_parked(&group, None).await.expect("begun");
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    assert_eq!(
        work_off(&mut consumer, &stream).await,
        (0..10).collect::<Vec<_>>()
    );
}

/// Goal: the same without a reset, which alone would make the two differ: the group had not come past the place when
/// its event was parked and lost.
#[tokio::test(start_paused = true)]
async fn what_stands_at_the_place_of_an_event_that_was_parked_early_is_parked_itself() {
    let (world, stream, group, log) = two_logs();
    let store = world.store();
    let groups = process(&store);
    create(&groups, &group, Start::Start).await;
    append(&store, &stream, events(1)).await;
    for parked in 1..=2 {
        append(&store, &stream, events(1)).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        // The first event stays without an answer.
        let first = consumer.next().await.expect("delivered");
        assert_eq!(first.event.revision.0, 0);
        park_next(&mut consumer).await;
        wait_for_parked(&groups, &group, parked).await;
        world.lose_newest(log, 1);
        store.begin_history();
        groups.restart_all().await.expect("stopped");
    }
}

/// What happened: a group whose parked stream somebody had emptied or bounded was halted at its next start, as if the
/// store had lost what was parked. Goal: it goes on.
#[tokio::test(start_paused = true)]
async fn a_parked_stream_may_be_emptied() {
    for how in ["delete", r#"{"$tb":10}"#, r#"{"$maxAge":1}"#] {
        let world = World::new(1);
        let store = world.store();
        let groups = process(&store);
        let group = on_stream(STREAM);
        create(&groups, &group, Start::Start).await;
        append(&store, STREAM, events(10)).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        for _ in 0..10 {
            let delivery = consumer.next().await.expect("delivered");
            let which = vec![Which::Delivery(delivery.number)];
            let parked = consumer.nack(which, Action::Park, "").await;
            assert_eq!(parked.expect("answered"), 1);
        }
        drop(consumer);
        groups.shutdown().await;
        let stream = group.parked_stream();
        let expected = ExpectedRevision::Any;
        if how == "delete" {
            let delete = gesta_core::DeleteStream {
                stream,
                expected,
                kind: gesta_core::DeleteKind::Soft,
            };
            store.delete_stream(delete).await.expect("deleted");
        } else {
            let metadata = gesta_core::StreamMetadata::parse(how).expect("valid");
            let set = gesta_core::SetStreamMetadata {
                stream,
                expected,
                metadata,
            };
            store.set_stream_metadata(set).await.expect("set");
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let groups = process(&store);
        append(&store, STREAM, events(2)).await;
        let mut consumer = try_join(&groups, &group)
            .await
            .unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(work_off(&mut consumer, STREAM).await, [10, 11], "{how}");
        drop(consumer);
        groups.shutdown().await;
    }
}

/// Parks the next `count` events, and waits until so many are parked.
async fn park(groups: &Groups, group: &GroupId, consumer: &mut Consumer, count: u64) {
    for _ in 0..count {
        park_next(consumer).await;
    }
    wait_for_parked(groups, group, count).await;
}

async fn park_next(consumer: &mut Consumer) {
    let next = tokio::time::timeout(Duration::from_secs(60), consumer.next());
    let delivery = next.await.expect("it comes").expect("delivered");
    let which = vec![Which::Delivery(delivery.number)];
    let parked = consumer.nack(which, Action::Park, "").await;
    assert_eq!(parked.expect("answered"), 1);
}

async fn wait_for_parked(groups: &Groups, group: &GroupId, count: u64) {
    let wait = async {
        while groups.info(group).await.expect("known").parked != count {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(600), wait).await;
    let found = groups.info(group).await.expect("known").parked;
    assert!(waited.is_ok(), "{found} are parked instead of {count}");
}

async fn delete(store: &FaultyStore, stream: StreamId, kind: DeleteKind) {
    let expected = ExpectedRevision::Any;
    let delete = DeleteStream {
        stream,
        expected,
        kind,
    };
    store.delete_stream(delete).await.expect("deleted");
}

async fn set_metadata(store: &FaultyStore, stream: StreamId, metadata: &str) {
    let set = SetStreamMetadata {
        stream,
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(metadata.to_owned()).expect("valid"),
    };
    store.set_stream_metadata(set).await.expect("set");
}

/// What happened: after a reset, an event that failed again was neither delivered nor parked. The id under which it was
/// parked was that of the first time, so the store took it for a repetition of that. Goal: what a group that was moved
/// delivers anew is parked anew, whatever has become of the first link.
#[tokio::test(start_paused = true)]
async fn what_fails_after_the_group_was_moved_is_parked_again() {
    for how in ["replay", "delete", "truncate", "nothing"] {
        for group in [on_stream(STREAM), on_all()] {
            let world = World::new(1);
            let store = world.store();
            let groups = process(&store);
            create(&groups, &group, Start::End).await;
            append(&store, STREAM, events(5)).await;
            let start = groups.info(&group).await.expect("known").settings.start;
            assert_eq!(start, Start::End);
            groups.reset(&group, ResetTo::End).await.expect("moved");
            append(&store, STREAM, events(5)).await;
            let mut consumer = try_join(&groups, &group).await.expect("joined");
            park(&groups, &group, &mut consumer, 5).await;
            let place = groups.info(&group).await.expect("known").checkpoint;
            let mut left = 0;
            match how {
                "replay" => {
                    groups.replay_parked(&group, None).await.expect("begun");
                    assert_eq!(work_off(&mut consumer, STREAM).await.len(), 5);
                    wait_for_parked(&groups, &group, 0).await;
                }
                "delete" => delete(&store, group.parked_stream(), DeleteKind::Soft).await,
                "truncate" => set_metadata(&store, group.parked_stream(), r#"{"$tb":5}"#).await,
                _ => left = 5,
            }
            let to = match group.source() {
                Source::Stream(_) => ResetTo::At(5),
                // The first of the five.
                Source::All => {
                    let events = store.read_whole_stream(STREAM).await.expect("readable");
                    ResetTo::At(events[5].position.0)
                }
            };
            let case = format!("{how} {group} {place:?}");
            groups.reset(&group, to).await.expect(&case);
            let mut consumer = try_join(&groups, &group).await.expect("joined");
            for _ in 0..5 {
                let delivery = consumer.next().await.expect("delivered");
                let which = vec![Which::Delivery(delivery.number)];
                let parked = consumer.nack(which, Action::Park, "").await;
                assert_eq!(parked.expect("answered"), 1);
            }
            wait_for_parked(&groups, &group, left + 5).await;
            groups.replay_parked(&group, None).await.expect("begun");
            let replayed = work_off(&mut consumer, STREAM).await;
            let newest = replayed.len().saturating_sub(5);
            assert_eq!(replayed[newest..], [5, 6, 7, 8, 9], "{case}");
            groups.shutdown().await;
        }
    }
}

/// Goal: a new start of a group without a checkpoint moves it too.
#[tokio::test(start_paused = true)]
async fn what_fails_after_a_new_start_is_parked_again() {
    let world = World::new(1);
    let store = world.store();
    let groups = process(&store);
    let group = on_stream(STREAM);
    let mut settings = Settings {
        start: Start::At(3),
        // No checkpoint but the last one.
        checkpoint_after_ms: 3_600_000,
        min_checkpoint_count: 1_000,
        ..Settings::default()
    };
    let create = Create {
        group: group.clone(),
        settings: settings.clone(),
        filter: Filter::ALL,
    };
    groups.create(create).await.expect("created");
    append(&store, STREAM, events(5)).await;
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    // The first is held, so that there is no checkpoint.
    let first = consumer.next().await.expect("delivered");
    assert_eq!(first.event.revision.0, 3);
    park(&groups, &group, &mut consumer, 1).await;
    settings.start = Start::At(4);
    groups.update(&group, settings).await.expect("changed");
    assert_eq!(groups.info(&group).await.expect("known").checkpoint, None);
    delete(&store, group.parked_stream(), DeleteKind::Soft).await;
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    park(&groups, &group, &mut consumer, 1).await;
    groups.shutdown().await;
}

/// What happened: a group whose parked stream somebody had closed with a tombstone could not be joined, reset or
/// deleted any more, and no group of its name could be made. Goal: it goes on with another parked stream, and says so.
#[tokio::test(start_paused = true)]
async fn a_tombstone_on_the_parked_stream_stops_no_group() {
    for before in [0, 10] {
        let world = World::new(1);
        let store = world.store();
        let groups = process(&store);
        let group = on_stream(STREAM);
        create(&groups, &group, Start::Start).await;
        append(&store, STREAM, events(10)).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        park(&groups, &group, &mut consumer, before).await;
        if before > 0 {
            // A checkpoint remembers what was parked.
            while groups.info(&group).await.expect("known").checkpoint != Some(10) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        delete(&store, group.parked_stream(), DeleteKind::Tombstone).await;
        append(&store, STREAM, events(5)).await;
        // A group that runs notices with the next event that it parks, and its consumers join again.
        let all = async {
            loop {
                let mut consumer = try_join(&groups, &group).await.expect("joined");
                let pause = Duration::from_secs(1);
                while let Ok(Ok(delivery)) = tokio::time::timeout(pause, consumer.next()).await {
                    let which = vec![Which::Delivery(delivery.number)];
                    drop(consumer.nack(which, Action::Park, "").await);
                }
                let info = groups.info(&group).await;
                if info.is_ok_and(|info| info.parked == 15 - before) {
                    return;
                }
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(600), all).await;
        assert!(all.is_ok(), "{:?}", groups.info(&group).await);
        let info = groups.info(&group).await.expect("known");
        let shown = gesta_groups::document::Group::from(&info);
        let next = format!("{}-1", group.parked_stream());
        assert_eq!(shown.parked_stream, Some(next.clone()));
        let links = store.read_whole_stream(&next).await.expect("readable");
        assert_eq!(links.len(), usize::try_from(15 - before).expect("small"));
        groups.replay_parked(&group, None).await.expect("begun");
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        let replayed = work_off(&mut consumer, STREAM).await;
        assert_eq!(replayed, (before..15).collect::<Vec<_>>());
        groups.reset(&group, ResetTo::Start).await.expect("moved");
        groups.delete(&group).await.expect("deleted");
        create(&groups, &group, Start::Start).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        park(&groups, &group, &mut consumer, 15).await;
        groups.shutdown().await;
    }
}

/// Goal: what an earlier group of the name has parked is no matter of the new one, also if a process that ran the
/// earlier one parks it only after the new one was made.
#[tokio::test(start_paused = true)]
async fn a_new_group_replays_nothing_of_an_earlier_one() {
    let world = World::new(1);
    let store = world.store();
    let (old, new) = (process(&store), process(&store));
    let group = on_stream(STREAM);
    create(&old, &group, Start::Start).await;
    append(&store, STREAM, events(6)).await;
    let mut of_old = try_join(&old, &group).await.expect("joined");
    park(&old, &group, &mut of_old, 2).await;
    new.delete(&group).await.expect("deleted");
    create(&new, &group, Start::Start).await;
    // The old process does not know it yet.
    for _ in 0..2 {
        let delivery = of_old.next().await.expect("delivered");
        let which = vec![Which::Delivery(delivery.number)];
        drop(of_old.nack(which, Action::Park, "").await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut of_new = try_join(&new, &group).await.expect("joined");
    let first = of_new.next().await.expect("delivered");
    assert_eq!(first.event.revision.0, 0);
    let which = vec![Which::Delivery(first.number)];
    drop(of_new.nack(which, Action::Park, "").await);
    assert_eq!(work_off(&mut of_new, STREAM).await, [1, 2, 3, 4, 5]);
    new.replay_parked(&group, None).await.expect("begun");
    assert_eq!(work_off(&mut of_new, STREAM).await, [0]);
    let bound = store.stream_metadata(group.checkpoint_stream()).await;
    assert_eq!(bound.expect("readable").metadata.max_count, Some(2));
    old.shutdown().await;
    new.shutdown().await;
}

/// What happened: a group counted its parked events from the first revision of the parked stream on, also if somebody
/// had emptied it.
#[tokio::test(start_paused = true)]
async fn only_parked_events_that_are_there_are_counted() {
    for how in ["delete", r#"{"$tb":3}"#, r#"{"$maxCount":1}"#] {
        let world = World::new(1);
        let store = world.store();
        let group = on_stream(STREAM);
        let groups = process(&store);
        create(&groups, &group, Start::Start).await;
        append(&store, STREAM, events(4)).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        park(&groups, &group, &mut consumer, 4).await;
        groups.shutdown().await;
        let groups = process(&store);
        let left = match how {
            "delete" => {
                delete(&store, group.parked_stream(), DeleteKind::Soft).await;
                0
            }
            metadata => {
                set_metadata(&store, group.parked_stream(), metadata).await;
                1
            }
        };
        assert_eq!(
            groups.info(&group).await.expect("known").parked,
            left,
            "{how}"
        );
        groups.shutdown().await;
    }
}

/// Goal: a group that has no consumers does not forget at once how many tries its events have had.
#[tokio::test(start_paused = true)]
async fn tries_are_kept_while_no_consumer_is_there() {
    for (pause, tries) in [(300, 1), (1_200, 0)] {
        let world = World::new(1);
        let store = world.store();
        let group = on_stream(STREAM);
        let groups = process(&store);
        create(&groups, &group, Start::Start).await;
        append(&store, STREAM, events(1)).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        consumer.next().await.expect("delivered");
        drop(consumer);
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let mut consumer = try_join(&groups, &group).await.expect("joined");
        let delivery = consumer.next().await.expect("delivered");
        assert_eq!(delivery.retries, tries);
        groups.shutdown().await;
    }
}

/// Goal: the end of a stream counts whether its last events are shown or not.
#[tokio::test(start_paused = true)]
async fn a_group_may_begin_at_the_end_of_a_stream_that_shows_nothing() {
    let world = World::new(1);
    let store = world.store();
    let groups = process(&store);
    let group = on_stream(STREAM);
    append(&store, STREAM, events(20)).await;
    let stream = StreamId::new(STREAM).expect("valid");
    let hide = gesta_core::SetStreamMetadata {
        stream: stream.clone(),
        expected: ExpectedRevision::Any,
        metadata: gesta_core::StreamMetadata::parse(r#"{"$tb":20}"#).expect("valid"),
    };
    store.set_stream_metadata(hide).await.expect("set");
    create(&groups, &group, Start::End).await;
    let one = Append::to(stream, ExpectedRevision::Any, events(1));
    store.append(one).await.expect("stored");
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    assert_eq!(work_off(&mut consumer, STREAM).await, [20]);
}

/// Goal: a group on all events that has nothing to do writes its claim, and nothing because of what it writes.
#[tokio::test(start_paused = true)]
async fn checkpoints_of_a_group_on_all_events_cause_no_further_ones() {
    let world = World::new(1);
    let store = world.store();
    let groups = process(&store);
    let create = Create {
        group: on_all(),
        settings: Settings {
            checkpoint_after_ms: 0,
            min_checkpoint_count: 1,
            max_checkpoint_count: 1,
            start: Start::End,
            ..Settings::default()
        },
        filter: Filter::ALL,
    };
    groups.create(create).await.expect("created");
    let mut consumer = try_join(&groups, &on_all()).await.expect("joined");
    // The configuration of the group itself may come.
    work_off(&mut consumer, STREAM).await;
    let before = world.end(LOG).position;
    for _ in 0..10 {
        // A subscription that begins anew reads to the end again.
        store.go_away_for(Duration::from_secs(1));
        assert_eq!(work_off(&mut consumer, STREAM).await, [0; 0]);
    }
    assert_eq!(world.end(LOG).position, before);
}

/// A store that begins another history while a call looks for the last checkpoint of a group, so many times.
struct ChangesMeanwhile {
    store: FaultyStore,
    shared: Arc<dyn EventStore>,
    checkpoints: StreamId,
    left: AtomicUsize,
}

#[async_trait]
impl Wrapper for ChangesMeanwhile {
    fn inner(&self) -> &dyn EventStore {
        &*self.shared
    }

    async fn read_stream(&self, request: ReadStream) -> gesta_core::Result<StreamPage> {
        let is_the_one = request.stream == self.checkpoints;
        let page = self.shared.read_stream(request).await;
        let one_less = |left: usize| left.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        if is_the_one && self.left.fetch_update(set, get, one_less).is_ok() {
            self.store.begin_history();
        }
        page
    }
}

/// Goal: whoever asks for a group while the store begins another history is answered from the new one. That is no
/// refusal of the store, which a consumer would take for the end of its work.
async fn a_change_of_history_meanwhile(group: GroupId) {
    let process = World::new(1).store();
    let store = Arc::new(Outer(ChangesMeanwhile {
        shared: process.share(),
        store: process,
        checkpoints: group.checkpoint_stream(),
        left: AtomicUsize::new(0),
    }));
    let shared: Arc<dyn EventStore> = Arc::clone(&store) as _;
    let groups = Groups::start(shared, Config::default());
    create(&groups, &group, Start::Start).await;
    append(&store.store, STREAM, events(20)).await;
    let changes = |times| store.left.store(times, Ordering::SeqCst);

    changes(1);
    let mut consumer = try_join(&groups, &group).await.expect("joined");
    assert_eq!(work_off(&mut consumer, STREAM).await.len(), 20);
    drop(consumer);
    groups.restart_all().await.expect("it ends");
    changes(1);
    let info = groups.stored(&group).await.expect("told");
    assert_eq!(info.halted, None);
    changes(1);
    let next = groups.reset(&group, ResetTo::Surviving).await;
    assert!(Some(next.expect("moved")) <= info.checkpoint);

    changes(usize::MAX);
    let joined = try_join(&groups, &group).await.map(drop);
    let reset = groups.reset(&group, ResetTo::Start).await.map(drop);
    for error in [joined, reset].map(|done| done.expect_err("all the time")) {
        assert!(matches!(error, Error::Overloaded(_)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_for_a_group_on_a_stream_is_made_anew_in_the_new_history() {
    a_change_of_history_meanwhile(on_stream(STREAM)).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_for_a_group_on_all_events_is_made_anew_in_the_new_history() {
    a_change_of_history_meanwhile(on_all()).await;
}
