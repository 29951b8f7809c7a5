//! Streams that were deleted in the target, scavenged or not, when their events come again.

use std::sync::atomic::{AtomicU64, Ordering};

use gesta::DatabaseStore as Store;
use gesta_core::backend::RunMode;
use gesta_core::{DeleteKind, DeleteStream, EventData, EventStoreExt, EventType, ExpectedRevision};
use tempfile::TempDir;

use super::losses::{EVENTS, Turns};
use super::tests::{Scripted, events};
use super::*;

/// A target in a file, which can be closed and opened again.
struct Home {
    folder: TempDir,
    store: Arc<Store>,
}

impl Home {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = gesta::Options::creating();
        let store = options.open_database(&url(&folder)).await.unwrap();
        Self { folder, store }
    }

    fn shared(&self) -> Arc<dyn EventStore> {
        Arc::clone(&self.store) as _
    }

    async fn open(&self, name: &str, source: impl Source + 'static) -> Result<Import> {
        let options = Options {
            name: name.into(),
            ..Options::new(Kind::KurrentDb, "esdb://h")?
        };
        Import::from(options, Box::new(source), self.shared()).await
    }

    async fn import(&self, name: &str, source: impl Source + 'static) -> Result<Report> {
        let mut import = self.open(name, source).await?;
        import.run(|_| ()).await?;
        Ok(import.report())
    }

    async fn delete(&self, stream: &str) {
        let delete = DeleteStream {
            stream: StreamId::new(stream).unwrap(),
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Soft,
        };
        self.store.delete_stream(delete).await.unwrap();
    }

    /// Appends what no import has written.
    async fn append(&self, stream: &str) {
        let event = EventData::json(EventType::new("t").unwrap(), "{}");
        let any = ExpectedRevision::Any;
        self.store
            .append_to(stream, any, vec![event])
            .await
            .unwrap();
    }

    async fn scavenge(&self) {
        // The newest event of a log stays.
        self.append("other-1").await;
        self.store.scavenge(RunMode::Real, |_| ()).await.unwrap();
    }

    /// Opens the file again, as the next command does: nothing is remembered but what is stored.
    async fn reopened(self, new_incarnation: bool) -> Self {
        let Self { folder, store } = self;
        store.shutdown().await.unwrap();
        drop(store);
        let url = url(&folder);
        if new_incarnation {
            gesta::schema::new_incarnation(&url).await.unwrap();
        }
        let store = gesta::Options::default().open_database(&url).await.unwrap();
        Self { folder, store }
    }

    /// The revisions that a stream shows.
    async fn shown(&self, stream: &str) -> Vec<u64> {
        match self.store.read_whole_stream(stream).await {
            Ok(shown) => shown.iter().map(|event| event.revision.0).collect(),
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn url(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("target.db").display())
}

/// So many events of one stream.
fn some(count: u64) -> Scripted {
    let told: Vec<_> = (0..count).map(|n| (n, Role::Event, "{}")).collect();
    Scripted(events(1, &told).into())
}

/// The same events, which the store does not recognise by their ids: as if they came so late that it looks no further.
fn with_other_ids(count: u64) -> Scripted {
    let Scripted(mut all) = some(count);
    for event in &mut all {
        event.id = Some(uuid::Uuid::new_v4());
    }
    Scripted(all)
}

/// What happened: an import by another name took every stream for new, and stored the events of one that was deleted
/// and scavenged again, if nothing else made its append fail. Goal: it stops there.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_by_another_name_does_not_bring_a_stream_back() {
    let home = Home::new().await;
    home.import("one", some(2)).await.unwrap();
    home.delete("cart-1").await;
    home.scavenge().await;
    let home = home.reopened(false).await;
    let error = home.import("other", some(2)).await.expect_err("scavenged");
    let error = error.to_string();
    assert!(error.contains("deleted and scavenged"), "{error}");
    assert_eq!(home.shown("cart-1").await, [0; 0]);
    home.store.shutdown().await.unwrap();
}

/// What happened: of a stream that was deleted in the target, an import by another name dropped also the events that
/// the target never had, and counted them as stored before. Goal: they are stored, after what was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_a_delete_is_stored_by_an_import_of_another_name() {
    let home = Home::new().await;
    home.import("one", some(2)).await.unwrap();
    home.delete("cart-1").await;
    let report = home.import("other", some(3)).await.unwrap();
    assert_eq!((report.stored, report.already_stored), (1, 2), "{report:?}");
    assert_eq!(home.shown("cart-1").await, [2]);
    home.store.shutdown().await.unwrap();
}

/// Goal: events that are sent without knowledge of a delete are told apart one by one, also if a scavenge has removed
/// some.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_a_delete_is_told_from_what_was_not() {
    for scavenged in [false, true] {
        let home = Home::new().await;
        // The target is empty, so that every stream is taken for new.
        let mut other = home.open("other", some(3)).await.unwrap();
        home.import("one", some(2)).await.unwrap();
        home.delete("cart-1").await;
        if scavenged {
            home.scavenge().await;
        }
        other.run(|_| ()).await.unwrap();
        assert_eq!(home.shown("cart-1").await, [2], "{scavenged}");
        home.store.shutdown().await.unwrap();
    }
}

/// What happened: a target in another life had a checkpoint that tells which events it once had. The import read
/// everything again, was stopped, and had forgotten it: it stored streams that were deleted and scavenged. Goal: it is
/// remembered until the place is passed.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_is_remembered_by_an_import_that_is_stopped_on_its_way() {
    let home = Home::new().await;
    home.import("one", Turns(EVENTS)).await.unwrap();
    home.delete("cart-60").await;
    home.scavenge().await;
    let home = home.reopened(true).await;
    for _ in 0..2 {
        let mut stopped = home.open("one", Turns(EVENTS)).await.unwrap();
        for _ in 0..2 {
            assert_eq!(stopped.step().await.unwrap(), Step::Went);
            stopped.checkpoint(false).await.unwrap();
        }
    }
    let home = home.reopened(true).await;
    let report = home.import("one", Turns(EVENTS)).await.unwrap();
    assert_eq!(report.stored, 0, "{report:?}");
    let left_out: Vec<_> = report.left_out.iter().collect();
    assert!(
        matches!(left_out[..], [(why, 1)] if why.contains("deleted and scavenged")),
        "{left_out:?}"
    );
    assert_eq!(home.shown("cart-60").await, [0; 0]);
    assert_eq!(report.place, EVENTS.to_string());
    home.store.shutdown().await.unwrap();
}

/// What happened: an import that was stopped had stored events after its last checkpoint. A stream of them that was
/// deleted and scavenged meanwhile came back when the import went on. Goal: it stops there.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_after_the_last_checkpoint_does_not_come_back() {
    let home = Home::new().await;
    let mut stopped = home.open("one", Turns(EVENTS)).await.unwrap();
    for page in 0..3 {
        assert_eq!(stopped.step().await.unwrap(), Step::Went);
        stopped.target.drain().await.unwrap();
        if page == 1 {
            stopped.checkpoint(false).await.unwrap();
        }
    }
    drop(stopped);
    assert_eq!(home.shown("cart-25").await, [0]);
    home.delete("cart-25").await;
    home.scavenge().await;
    let home = home.reopened(false).await;
    let error = home.import("one", Turns(EVENTS)).await;
    let error = error.expect_err("nothing tells").to_string();
    assert!(error.contains("after the last checkpoint"), "{error}");
    assert_eq!(home.shown("cart-25").await, [0; 0]);
    home.store.shutdown().await.unwrap();
}

/// A journal of so many events of one stream. Each page begins with the last event of the one before, as where the
/// source cannot tell what was committed meanwhile.
struct Overlaps(u64);

#[async_trait::async_trait]
impl Source for Overlaps {
    fn identity(&self) -> String {
        "overlaps".into()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let all = (0..self.0).map(|n| Turns(1).event(n));
        let events: Vec<_> = all.filter(|event| event.place >= after).take(2).collect();
        let place = events.last().map_or(after, |event| event.place);
        Ok(Page {
            place,
            end: place == after,
            events,
            ..Page::default()
        })
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// Goal: after a run that has come to its end, what comes later of an erased stream is stored, whatever others wrote to
/// it, and is known when it is met again in the same run.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_a_whole_run_is_stored_although_its_stream_was_erased() {
    let home = Home::new().await;
    home.import("one", Overlaps(3)).await.unwrap();
    home.append("cart-0").await;
    home.delete("cart-0").await;
    home.scavenge().await;
    let home = home.reopened(false).await;
    let report = home.import("one", Overlaps(5)).await.unwrap();
    assert_eq!((report.stored, report.unmappable), (2, 0), "{report:?}");
    assert_eq!(home.shown("cart-0").await, [4, 5]);
    home.store.shutdown().await.unwrap();
}

/// What happened: if others had appended to a stream before it was deleted, an import by another name took it for one
/// that had nothing of the source, and stored everything again, readable. Goal: what was imported is found behind what
/// others wrote.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_before_a_delete_does_not_hide_what_was_imported() {
    let home = Home::new().await;
    home.import("one", some(2)).await.unwrap();
    home.append("cart-1").await;
    home.delete("cart-1").await;
    let report = home.import("other", with_other_ids(3)).await.unwrap();
    assert_eq!((report.stored, report.already_stored), (1, 2), "{report:?}");
    assert_eq!(home.shown("cart-1").await, [3]);
    home.store.shutdown().await.unwrap();
}

/// What happened: as above, with a scavenge that removed what was imported, before others wrote. Goal: the import stops
/// there.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_after_a_scavenge_tells_nothing_of_what_was_imported() {
    let home = Home::new().await;
    home.import("one", some(2)).await.unwrap();
    home.delete("cart-1").await;
    home.scavenge().await;
    home.append("cart-1").await;
    home.delete("cart-1").await;
    let error = home.import("other", with_other_ids(2)).await;
    let error = error.expect_err("scavenged").to_string();
    assert!(error.contains("deleted and scavenged"), "{error}");
    assert_eq!(home.shown("cart-1").await, [0; 0]);
    home.store.shutdown().await.unwrap();
}

/// A journal of one stream whose newest events are read before their place is settled, as that of r2dbc.
struct Ahead {
    count: u64,
    is_settled: bool,
    /// Whether a transaction is open that may have events behind all these.
    waits: bool,
}

impl Ahead {
    fn settled(count: u64) -> Self {
        Self {
            count,
            is_settled: true,
            waits: false,
        }
    }

    fn waiting(count: u64, is_settled: bool) -> Self {
        Self {
            count,
            is_settled,
            waits: true,
        }
    }
}

#[async_trait::async_trait]
impl Source for Ahead {
    fn identity(&self) -> String {
        "ahead".into()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let all = (0..self.count).map(|n| Turns(1).event(n));
        let events: Vec<_> = all.filter(|event| event.place > after).collect();
        let last = events.last().map_or(after, |event| event.place);
        Ok(Page {
            place: if self.is_settled { last } else { after },
            end: !self.waits && events.is_empty(),
            events,
            waiting: self.waits.then(|| "a transaction".into()),
            ..Page::default()
        })
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What happened: an import that waited for a transaction of the source had stored what it had read behind its place,
/// and its checkpoint said that nothing was; or the checkpoint of a second run did, which had found all of it there. A
/// stream of these events that was deleted and scavenged came back. Goal: the import stops there.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_ahead_of_the_place_does_not_come_back() {
    for (settled_before, runs) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
        let home = Home::new().await;
        let before = Ahead::settled(settled_before);
        home.import("one", before).await.unwrap();
        for _ in 0..runs {
            let waiting = Ahead::waiting(3, false);
            let mut stopped = home.open("one", waiting).await.unwrap();
            let waiting = stopped.step().await.unwrap();
            assert!(matches!(waiting, Step::Waiting(_)), "{waiting:?}");
        }
        assert_eq!(home.shown("cart-0").await, [0, 1, 2]);
        home.delete("cart-0").await;
        home.scavenge().await;
        let home = home.reopened(false).await;
        let error = home.import("one", Ahead::settled(3)).await;
        let error = error.expect_err("nothing tells").to_string();
        assert!(error.contains("deleted and scavenged"), "{error}");
        assert_eq!(
            home.shown("cart-0").await,
            [0; 0],
            "{settled_before} {runs}"
        );
        home.store.shutdown().await.unwrap();
    }
}

/// What happened: of a store of several databases the one with the checkpoints had lost the last of them, and another
/// one had what they told of. A stream that was deleted and scavenged there came back, at once or after a run that
/// waited for a transaction of the source. Goal: the import stops there.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_life_has_stored_does_not_come_back() {
    for waits in [false, true] {
        let home = Home::new().await;
        home.import("one", Ahead::settled(3)).await.unwrap();
        // Stands for later runs of the same import, whose checkpoints are lost.
        home.import("other", Ahead::settled(5)).await.unwrap();
        assert_eq!(home.shown("cart-0").await, [0, 1, 2, 3, 4]);
        home.delete("cart-0").await;
        home.scavenge().await;
        let home = home.reopened(true).await;
        if waits {
            let mut stopped = home.open("one", Ahead::waiting(3, true)).await.unwrap();
            let waiting = stopped.step().await.unwrap();
            assert!(matches!(waiting, Step::Waiting(_)), "{waiting:?}");
        }
        let home = home.reopened(false).await;
        let error = home.import("one", Ahead::settled(5)).await;
        let error = error.expect_err("nothing tells").to_string();
        assert!(error.contains("after the last checkpoint"), "{error}");
        assert_eq!(home.shown("cart-0").await, [0; 0], "{waits}");
        home.store.shutdown().await.unwrap();
    }
}

/// A journal of three streams that grows.
struct Growing(Arc<AtomicU64>);

#[async_trait::async_trait]
impl Source for Growing {
    fn identity(&self) -> String {
        "growing".into()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let all = (0..self.0.load(Ordering::SeqCst)).map(|n| Turns(3).event(n));
        let events: Vec<_> = all.filter(|event| event.place > after).collect();
        Ok(Page {
            place: events.last().map_or(after, |event| event.place),
            end: events.is_empty(),
            events,
            ..Page::default()
        })
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What happened: a follower that had gone on after one that was stopped stopped itself at events that came long after
/// it had reached the end, if their stream was erased, and said that they might have been stored before. Goal: it
/// stores them, alone and beside others.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_has_reached_the_end_knows_what_comes_later() {
    for beside_others in [false, true] {
        let home = Home::new().await;
        let count = Arc::new(AtomicU64::new(3));
        let journal = || Growing(Arc::clone(&count));
        home.import("one", journal()).await.unwrap();
        count.store(4, Ordering::SeqCst);
        let mut stopped = home.open("one", journal()).await.unwrap();
        assert_eq!(stopped.step().await.unwrap(), Step::Went);
        stopped.target.drain().await.unwrap();
        drop(stopped);
        // The checkpoint of the first run tells of this stream.
        home.delete("cart-2").await;
        home.scavenge().await;
        let home = home.reopened(false).await;
        let mut follower = home.open("one", journal()).await.unwrap();
        assert_eq!(follower.step().await.unwrap(), Step::Went);
        assert_eq!(follower.step().await.unwrap(), Step::End);
        // The fifth event is of another stream, the sixth of the one that was deleted.
        for to in if beside_others { vec![6] } else { vec![5, 6] } {
            count.store(to, Ordering::SeqCst);
            assert_eq!(follower.step().await.unwrap(), Step::Went);
            assert_eq!(follower.step().await.unwrap(), Step::End);
        }
        assert_eq!(home.shown("cart-2").await.len(), 1, "{beside_others}");
        home.store.shutdown().await.unwrap();
    }
}
