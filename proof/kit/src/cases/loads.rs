//! Many streams read in one call: each answer is that of a read of its stream.

use std::sync::Arc;

use gesta_core::limits::{EVENT_BYTES_MAX, PAGE_BYTES_MAX};
use gesta_core::{
    ContentType, DeleteKind, Error, EventData, EventStoreExt, LoadFrom, LoadStream, OwnerStore,
    ReadStream, RecordedEvent, Result, Revision, StreamFrom, StreamPage,
};

use super::payloads::noise;
use crate::depth;
use crate::factory::{StoreFactory, TestStore};
use crate::faulty::Random;
use crate::support::*;

/// Makes a new store, and returns it also for owners.
pub(super) async fn owned(factory: &dyn StoreFactory) -> Option<(TestStore, Arc<dyn OwnerStore>)> {
    let store = factory.create().await;
    owner_of(factory, store)
}

pub(super) fn owner_of(
    factory: &dyn StoreFactory,
    store: TestStore,
) -> Option<(TestStore, Arc<dyn OwnerStore>)> {
    let Some(owner) = store.owner() else {
        skip(factory, "a store whose streams can be owned");
        return None;
    };
    Some((store, owner))
}

fn load(name: &str, from: LoadFrom, limit: usize) -> LoadStream {
    LoadStream {
        stream: stream(name),
        from,
        limit,
    }
}

async fn load_all(owner: &dyn OwnerStore, loads: Vec<LoadStream>) -> Vec<Result<StreamPage>> {
    let count = loads.len();
    let pages = within("load", owner.read_streams(loads)).await;
    let pages = pages.expect("the call itself succeeds");
    assert_eq!(pages.len(), count, "one answer per request");
    pages.into_iter().map(|loaded| loaded.page).collect()
}

/// Goal: the answer tells which events were deleted, so that a stream that was deleted is told from one that was never
/// written, and hidden events from deleted ones.
pub async fn tell_what_was_deleted(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    for name in ["gone", "again", "hidden"] {
        append(store.as_ref(), name, NoStream, events(2)).await;
    }
    for name in ["gone", "again"] {
        let deleted = delete(store.as_ref(), name, Any, DeleteKind::Soft).await;
        deleted.expect("deleted");
    }
    append(store.as_ref(), "again", NoStream, events(1)).await;
    for name in ["again", "hidden"] {
        let set = set_metadata(store.as_ref(), name, Any, r#"{"$tb":1}"#).await;
        set.expect("set");
    }
    let streams = [("gone", 2), ("again", 2), ("hidden", 0), ("never", 0)];
    let loads = streams.map(|(name, _)| load(name, LoadFrom::Start, 10));
    let pages = within("load", owner.read_streams(loads.into())).await;
    for ((name, deleted_before), page) in streams.iter().zip(pages.expect("answers")) {
        assert_eq!(page.deleted_before, Revision(*deleted_before), "{name}");
    }
}

/// Returns what a read of this one stream answers.
async fn single(owner: &dyn OwnerStore, load: &LoadStream) -> Result<StreamPage> {
    let from = match load.from {
        LoadFrom::Start => StreamFrom::Start,
        LoadFrom::Revision(revision) => StreamFrom::Revision(revision),
        LoadFrom::Last => {
            let page = owner
                .read_stream(ReadStream::forwards(load.stream.clone()).from(StreamFrom::End))
                .await?;
            StreamFrom::Revision(page.last_revision)
        }
    };
    let request = ReadStream::forwards(load.stream.clone())
        .from(from)
        .limit(load.limit);
    within("read stream", owner.read_stream(request)).await
}

fn kind(error: Error) -> ErrorKind {
    error.kind().clone()
}

/// Makes streams in every state. Returns their names, some of which were never used.
async fn streams_of_every_kind(store: &TestStore, random: &mut Random) -> Vec<String> {
    let store = store.as_ref();
    let mut names: Vec<String> = (0..30).map(|n| format!("s-{n}")).collect();
    for name in &names {
        let count = 1 + random.below(12);
        append(store, name, NoStream, events(count)).await;
    }
    // The events of a stream are not next to each other.
    for _ in 0..30 {
        let count = 1 + random.below(3);
        append(store, random.pick::<String>(&names), Any, events(count)).await;
    }
    for (n, name) in names.iter().enumerate() {
        let json = match n % 6 {
            0 => delete(store, name, Any, DeleteKind::Soft)
                .await
                .map(|_| None),
            1 => delete(store, name, Any, DeleteKind::Tombstone)
                .await
                .map(|_| None),
            2 => Ok(Some(format!(r#"{{"$maxCount":{}}}"#, 1 + random.below(4)))),
            3 => Ok(Some(format!(r#"{{"$tb":{}}}"#, random.below(20)))),
            _ => Ok(None),
        };
        if let Some(json) = json.expect("deleted") {
            let set = set_metadata(store, name, Any, &json).await;
            set.expect("set");
        }
        if n % 12 == 0 {
            append(store, name, NoStream, events(2)).await;
        }
    }
    append(store, "$system", Any, events(2)).await;
    let tag = tagged("tagged", &["a", "b"]).with_metadata("about");
    append(store, "tags", NoStream, vec![tag]).await;
    for odd in [
        "never",
        "$system",
        "$$never",
        "$$s-2",
        "$$s-1",
        "$$$system",
        "$$$$x",
        "tags",
    ] {
        names.push(odd.to_owned());
    }
    names
}

/// Goal: whatever the state of a stream, and wherever the load begins, its answer is that of a read of this stream
/// alone, even if the stream is asked for several times.
pub async fn equal_reads_of_single_streams(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let seed = depth::seed();
    say(&format!(
        "SEED of loads of {}: GESTA_SEED={seed}",
        factory.name()
    ));
    let mut random = Random::new(seed);
    let names = streams_of_every_kind(&store, &mut random).await;
    for count in [1, 2, 40, 200] {
        let loads: Vec<LoadStream> = (0..count)
            .map(|_| {
                let from = match random.below(4) {
                    0 => LoadFrom::Start,
                    1 => LoadFrom::Last,
                    2 => LoadFrom::Revision(Revision(random.number())),
                    _ => LoadFrom::Revision(Revision(random.number() % 16)),
                };
                load(random.pick::<String>(&names), from, 1 + random.below(16))
            })
            .collect();
        let pages = load_all(owner.as_ref(), loads.clone()).await;
        for (load, page) in loads.iter().zip(pages) {
            let wanted = single(owner.as_ref(), load).await;
            assert_eq!(page.map_err(kind), wanted.map_err(kind), "{load:?}");
        }
    }
}

/// Goal: pages of many streams join without a gap or a double.
pub async fn join_page_by_page(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let names: Vec<String> = (0..120).map(|n| format!("s-{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        append(store.as_ref(), name, NoStream, events(1 + n % 10)).await;
    }
    let mut wanted: Vec<LoadStream> = names
        .iter()
        .map(|name| load(name, LoadFrom::Start, 3))
        .collect();
    let mut found: Vec<RecordedEvent> = Vec::new();
    while !wanted.is_empty() {
        let pages = load_all(owner.as_ref(), wanted.clone()).await;
        let mut left = Vec::new();
        for (load, page) in wanted.into_iter().zip(pages) {
            let page = page.expect("readable");
            assert!(page.events.len() <= 3, "more than the limit");
            found.extend(page.events);
            if !page.end {
                let from = LoadFrom::Revision(page.next.expect("where to go on"));
                assert_ne!(from, load.from, "a page of small events moves on");
                left.push(LoadStream { from, ..load });
            }
        }
        wanted = left;
    }
    for name in names {
        let stored = store.read_whole_stream(&name).await.expect("readable");
        let found = found.iter().filter(|event| event.stream == stream(&name));
        assert!(found.eq(stored.iter()), "{name}");
    }
}

/// Goal: the answers of one call hold at most the bytes of one page for each log, and never more than those of four
/// pages. An answer that leaves something out says so, and every call gets on.
pub async fn of_large_events_end_early(factory: &dyn StoreFactory) {
    // Two of these events and the tags of a small stream are more than a page. Once tags were not counted.
    const LARGE: usize = EVENT_BYTES_MAX - 100 * 1024;
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let pages_max = usize::from(factory.logs().min(4));
    let names = ["a", "small", "b", "c", "last"];
    for (seed, name) in (1..).zip(["a", "b", "c"]) {
        let large = EventData {
            content_type: ContentType::Binary,
            data: noise(seed, LARGE).into(),
            ..event("large")
        };
        append(store.as_ref(), name, NoStream, events(2)).await;
        append(store.as_ref(), name, Any, vec![large]).await;
        append(store.as_ref(), name, Any, events(1)).await;
    }
    let tagged = (0..60).map(|_| event("tagged").with_tags(all_tags()));
    append(store.as_ref(), "small", NoStream, tagged.collect()).await;
    append(store.as_ref(), "last", NoStream, events(3)).await;
    let mut wanted: Vec<LoadStream> = names
        .iter()
        .map(|name| load(name, LoadFrom::Start, 100))
        .collect();
    let mut found: Vec<RecordedEvent> = Vec::new();
    while !wanted.is_empty() {
        let pages = load_all(owner.as_ref(), wanted.clone()).await;
        let (mut left, mut bytes, mut count) = (Vec::new(), 0, 0);
        for (load, page) in wanted.into_iter().zip(pages) {
            let page = page.expect("readable");
            bytes += page
                .events
                .iter()
                .map(RecordedEvent::cost_bytes)
                .sum::<usize>();
            count += page.events.len();
            found.extend(page.events);
            if !page.end {
                let from = LoadFrom::Revision(page.next.expect("where to go on"));
                left.push(LoadStream { from, ..load });
            }
        }
        assert!(
            bytes <= pages_max * PAGE_BYTES_MAX,
            "{bytes} bytes in one answer"
        );
        assert!(count > 0 || left.is_empty(), "an answer gets on");
        wanted = left;
    }
    for name in names {
        let stored = store.read_whole_stream(name).await.expect("readable");
        let found = found.iter().filter(|event| event.stream == stream(name));
        assert!(found.eq(stored.iter()), "{name}");
    }
}

/// Goal: the answer includes everything that was acknowledged before the call, through whichever store it was appended.
pub async fn see_what_was_acknowledged(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    let second = factory.second(&store).await;
    let other = second.as_ref().unwrap_or(&store);
    for round in 0..10_u64 {
        let name = if round % 2 == 0 { "even" } else { "odd" };
        append(other.as_ref(), name, Any, events(1)).await;
        let loads = ["even", "odd"].map(|name| load(name, LoadFrom::Last, 1));
        let pages = load_all(owner.as_ref(), loads.into()).await;
        let last = |page: &Result<StreamPage>| page.as_ref().ok().map(|page| page.last_revision);
        let wanted = [round / 2, round.div_ceil(2)];
        let wanted = [Some(wanted[0]), wanted[1].checked_sub(1)].map(|last| last.map(Revision));
        assert_eq!([last(&pages[0]), last(&pages[1])], wanted, "round {round}");
    }
}

/// Goal: events older than `$maxAge` are left out of the load of the stream that has it, and of no other.
pub async fn leave_old_events_out(factory: &dyn StoreFactory) {
    let clock = Arc::new(TestClock::at(0));
    let Some(store) = factory.create_with_clock(clock.clone()).await else {
        return skip(factory, "a clock of its own");
    };
    let Some((store, owner)) = owner_of(factory, store) else {
        return;
    };
    for name in ["old", "all"] {
        append(store.as_ref(), name, NoStream, events(3)).await;
    }
    let set = set_metadata(store.as_ref(), "old", Any, r#"{"$maxAge":60}"#).await;
    set.expect("set");
    clock.set(61);
    append(store.as_ref(), "old", Any, events(1)).await;
    for (now, wanted) in [(61, [1, 3, 1, 1]), (1_000, [0, 3, 0, 1])] {
        clock.set(now);
        let loads = vec![
            load("old", LoadFrom::Start, 10),
            load("all", LoadFrom::Start, 10),
            load("old", LoadFrom::Last, 10),
            load("all", LoadFrom::Last, 10),
        ];
        let pages = load_all(owner.as_ref(), loads.clone()).await;
        for ((load, page), wanted) in loads.iter().zip(pages).zip(wanted) {
            let page = page.expect("readable");
            assert_eq!(page.events.len(), wanted, "{load:?} at {now} s");
            let alone = single(owner.as_ref(), load).await.expect("readable");
            assert_eq!(page, alone, "{load:?} at {now} s");
        }
    }
}

/// Goal: too many streams and pages of a wrong size are refused; a call without streams is answered.
pub async fn of_wrong_size_are_refused(factory: &dyn StoreFactory) {
    let Some((store, owner)) = owned(factory).await else {
        return;
    };
    append(store.as_ref(), "s", NoStream, events(1)).await;
    assert!(load_all(owner.as_ref(), Vec::new()).await.is_empty());
    for limit in [0, 10_001, usize::MAX] {
        let loads = vec![
            load("s", LoadFrom::Start, 1),
            load("s", LoadFrom::Last, limit),
        ];
        assert_kind!(
            within("load", owner.read_streams(loads)).await,
            ErrorKind::InvalidArgument { field, .. } if field == "limit"
        );
    }
    let most = vec![load("s", LoadFrom::Start, 10_000); 1_000];
    for page in load_all(owner.as_ref(), most.clone()).await {
        assert_eq!(page.expect("readable").events.len(), 1);
    }
    let too_many = [most, vec![load("s", LoadFrom::Start, 1)]].concat();
    assert_kind!(
        within("load", owner.read_streams(too_many)).await,
        ErrorKind::InvalidArgument { .. }
    );
    within("shut down", store.shutdown()).await.expect("closed");
    assert_kind!(
        within(
            "load",
            owner.read_streams(vec![load("s", LoadFrom::Start, 1)])
        )
        .await,
        ErrorKind::Unavailable(_)
    );
}
