//! The read model over real stores: whatever fails, each event counts once.

use std::collections::BTreeMap;
use std::path::Path;

use gesta::entity::EventCodec;
use gesta::projection::Phase;
use gesta::{DatabaseStore, EventData, EventStoreExt, ExpectedRevision, Options, Timestamp};
use gesta_rig::{FaultProxy, fresh_schema, shared};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Duration, timeout};

use super::*;
use crate::domain::{Event, INITIAL_PRICE, Seat, SeatStatus};

/// Longest wait for anything. What fails is tried again after up to 5 s, several times in a row; a process that was
/// killed keeps the rows for 10 s.
const DEADLINE: Duration = Duration::from_secs(120);
const AT: Timestamp = Timestamp(1_790_000_000_000_000);

/// A store, and what should be counted of it.
struct Cinema {
    store: Arc<DatabaseStore>,
    expected: BTreeMap<Uuid, i64>,
}

impl Cinema {
    async fn open(url: &str) -> Self {
        let store = Options::creating()
            .open_database(url)
            .await
            .expect("opened");
        Self {
            store,
            expected: BTreeMap::new(),
        }
    }

    async fn append(&self, show_id: Uuid, events: &[Event]) {
        let stored = |event: &Event| {
            let form = crate::events::ShowEvents
                .encode(event)
                .expect("every event has a form");
            EventData::binary(form.event_type, form.data)
        };
        let events: Vec<_> = events.iter().map(stored).collect();
        let stream = format!("show-{show_id}");
        let appended = self.store.append_to(&stream, ExpectedRevision::Any, events);
        appended.await.expect("appended");
    }

    async fn create(&mut self, show_id: Uuid, seats: usize) {
        let seat = Seat {
            status: SeatStatus::Available,
            price: INITIAL_PRICE,
            reserved_at: None,
        };
        let created = Event::ShowCreated {
            show_id,
            title: "Ran".into(),
            seats: vec![seat; seats],
            at: AT,
        };
        self.append(show_id, &[created]).await;
        let seats = i64::try_from(seats).expect("small");
        self.expected.insert(show_id, seats);
    }

    /// Reserves as many seats of a show, and gives the first back.
    async fn reserve(&mut self, show_id: Uuid, seats: u32) {
        let at = AT;
        let reserved = |seat| Event::SeatReserved { show_id, seat, at };
        let mut events: Vec<Event> = (1..=seats).map(reserved).collect();
        events.push(Event::SeatReservationCancelled {
            show_id,
            seat: 1,
            at,
        });
        self.append(show_id, &events).await;
        *self.expected.entry(show_id).or_default() += 1 - i64::from(seats);
    }

    async fn until_counted(&self, model: &ReadModel) {
        let expected: Vec<(Uuid, i64)> = self.expected.iter().map(|(id, n)| (*id, *n)).collect();
        let mut found = Vec::new();
        let counted = async {
            loop {
                let page = model.page(None, 1_000).await.unwrap_or_default();
                let rows = page.into_iter();
                found = rows.map(|(id, seats)| (id, seats.available)).collect();
                if found == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = timeout(DEADLINE, counted).await;
        assert!(in_time.is_ok(), "found {found:?}, expected {expected:?}");
    }

    /// A read model with the rows beside the store at this URL.
    async fn model(&self, url: &str) -> ReadModel {
        let store: Arc<dyn EventStore> = Arc::clone(&self.store) as _;
        let started = ReadModel::start(&store, beside(url).expect("a place")).await;
        started.expect("started")
    }

    async fn close(self) {
        self.store.shutdown().await.expect("shut down");
    }
}

fn show(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// Waits until what the read model has done is so.
async fn until(model: &ReadModel, is_so: impl FnMut(&Progress) -> bool) {
    let mut progress = model.progress.clone();
    let waited = timeout(DEADLINE, progress.wait_for(is_so)).await;
    let found = model.progress.borrow().clone();
    assert!(matches!(waited, Ok(Ok(_))), "{found:?}");
}

/// Waits until so many events are counted: rows can be seen a moment before, and the end may come in between.
async fn has_counted(model: &ReadModel, events: u64) {
    until(model, |progress| progress.events >= events).await;
}

fn events_of(model: &ReadModel) -> u64 {
    model.progress.borrow().events
}

fn rebuilds_of(model: &ReadModel) -> i64 {
    model.progress.borrow().resets
}

fn url_in(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("cinema.db").display())
}

/// Counting, pages, a restart of the read model, events of others.
async fn counts_and_resumes(url: &str) {
    let mut cinema = Cinema::open(url).await;
    for number in 1..=3 {
        cinema.create(show(number), 10).await;
    }
    let model = cinema.model(url).await;
    cinema.until_counted(&model).await;
    cinema.reserve(show(2), 4).await;
    let data = EventData::json(gesta::EventType::new("other").expect("valid"), "{}");
    let other = cinema
        .store
        .append_to("user-1", ExpectedRevision::Any, vec![data]);
    other.await.expect("appended");
    cinema.until_counted(&model).await;
    let page = model.page(Some(show(1)), 1).await.expect("a page");
    assert_eq!(page, [(show(2), Seats { available: 7 })]);
    assert_eq!(model.page(Some(show(3)), 1).await.expect("a page"), []);
    has_counted(&model, 8).await;
    model.shutdown().await;
    assert_eq!(events_of(&model), 8);

    cinema.reserve(show(1), 5).await;
    let model = cinema.model(url).await;
    cinema.until_counted(&model).await;
    has_counted(&model, 6).await;
    model.shutdown().await;
    assert_eq!(events_of(&model), 6, "only what was new is counted");
    assert_eq!(rebuilds_of(&model), 0);
    cinema.close().await;
}

#[tokio::test]
async fn seats_are_counted_in_a_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    counts_and_resumes(&url_in(folder.path())).await;
}

#[tokio::test]
async fn seats_are_counted_in_postgres() {
    let Some(server) = shared() else { return };
    counts_and_resumes(&format!("{}?schema={}", server.url(), fresh_schema())).await;
}

/// What happened: the URLs of several databases were taken for one, which the driver does not understand.
#[tokio::test]
async fn seats_are_counted_beside_several_databases() {
    let Some(server) = shared() else { return };
    let url = || format!("{}?schema={}", server.url(), fresh_schema());
    let urls = [url(), url()].join(" ");
    let created = gesta::schema::create(&urls, 4).await;
    created.expect("created");
    counts_and_resumes(&urls).await;
}

#[tokio::test]
async fn seats_are_counted_in_memory() {
    let mut cinema = Cinema::open("sqlite::memory:").await;
    let model = cinema.model("sqlite::memory:").await;
    cinema.create(show(1), 3).await;
    cinema.until_counted(&model).await;
    model.shutdown().await;
    cinema.close().await;
}

/// Rows of a store that was replaced are not added to, but made again.
async fn is_rebuilt(mut old: Cinema, mut new: Cinema, rows_beside: &str) {
    old.create(show(1), 50).await;
    old.create(show(9), 50).await;
    let model = old.model(rows_beside).await;
    old.until_counted(&model).await;
    model.shutdown().await;
    old.close().await;

    new.create(show(1), 20).await;
    let model = new.model(rows_beside).await;
    new.until_counted(&model).await;
    assert_eq!(rebuilds_of(&model), 1);
    model.shutdown().await;
    new.close().await;
}

#[tokio::test]
async fn another_life_of_the_store_is_counted_anew() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let memory = "sqlite::memory:";
    let (old, new) = (Cinema::open(memory).await, Cinema::open(memory).await);
    is_rebuilt(old, new, &url_in(folder.path())).await;

    let Some(server) = shared() else { return };
    let url = format!("{}?schema={}", server.url(), fresh_schema());
    let (old, new) = (Cinema::open(&url).await, Cinema::open(memory).await);
    is_rebuilt(old, new, &url).await;
}

/// Goal: whatever is interrupted, each event counts once. That a failure at any single call neither loses nor doubles
/// is tested by `gesta::projection`, on every target.
#[tokio::test]
async fn failures_neither_lose_nor_double() {
    let Some(server) = shared() else { return };
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut cinema = Cinema::open("sqlite::memory:").await;
    let url = format!("{}?schema={}", server.url(), fresh_schema());
    let created = gesta::schema::create(&url, 1).await;
    created.expect("created");
    let proxy = FaultProxy::start(server.addr()).expect("a proxy");
    for number in 1..=5 {
        cinema.create(show(number), 100).await;
    }
    // The read model is ended in the middle of its work as well: each round has one of its own.
    for _ in 0..6 {
        let model = cinema.model(&proxy.url(&url)).await;
        for _ in 0..random.random_range(1..20) {
            let (number, seats) = (random.random_range(1..=5), random.random_range(1..=3));
            cinema.reserve(show(number), seats).await;
            if random.random_bool(0.3) {
                proxy.cut_all();
            }
        }
        if random.random_bool(0.5) {
            cinema.until_counted(&model).await;
        }
        model.shutdown().await;
    }
    let model = cinema.model(&proxy.url(&url)).await;
    cinema.until_counted(&model).await;
    model.shutdown().await;
    cinema.close().await;
}

#[tokio::test]
async fn a_database_that_goes_away_is_waited_for() {
    let Some(server) = shared() else { return };
    let url = format!("{}?schema={}", server.url(), fresh_schema());
    let mut cinema = Cinema::open(&url).await;
    let proxy = FaultProxy::start(server.addr()).expect("a proxy");
    proxy.refuse_connections(true);
    let model = cinema.model(&proxy.url(&url)).await;
    cinema.create(show(1), 100).await;
    assert!(model.page(None, 1).await.is_err());
    proxy.refuse_connections(false);
    cinema.until_counted(&model).await;
    for _ in 0..5 {
        cinema.reserve(show(1), 2).await;
        proxy.cut_all();
        cinema.reserve(show(1), 3).await;
    }
    cinema.until_counted(&model).await;
    assert!(model.progress.borrow().failures > 0);
    model.shutdown().await;
    cinema.close().await;
}

#[tokio::test]
async fn several_processes_keep_the_same_rows() {
    let Some(server) = shared() else { return };
    let url = format!("{}?schema={}", server.url(), fresh_schema());
    let mut cinema = Cinema::open(&url).await;
    cinema.create(show(1), 100).await;
    let models = [cinema.model(&url).await, cinema.model(&url).await];
    for _ in 0..20 {
        cinema.reserve(show(1), 2).await;
    }
    cinema.until_counted(&models[0]).await;
    // Whichever keeps the rows goes; the other takes over.
    let [first, second] = models;
    first.shutdown().await;
    cinema.reserve(show(1), 7).await;
    cinema.until_counted(&second).await;
    second.shutdown().await;
    cinema.close().await;
}

#[tokio::test]
async fn what_cannot_be_read_stops_the_count() {
    let mut cinema = Cinema::open("sqlite::memory:").await;
    let model = cinema.model("sqlite::memory:").await;
    cinema.create(show(1), 3).await;
    cinema.until_counted(&model).await;
    let event_type = gesta::EventType::new(crate::events::SHOW_CREATED).expect("valid");
    let broken = vec![EventData::binary(event_type, &b"\xff"[..])];
    let stream = format!("show-{}", show(2));
    let appended = cinema
        .store
        .append_to(&stream, ExpectedRevision::Any, broken);
    appended.await.expect("appended");
    cinema
        .append(
            show(1),
            &[Event::SeatReserved {
                show_id: show(1),
                seat: 1,
                at: AT,
            }],
        )
        .await;
    // It is tried again, and then it stops.
    until(&model, |progress| {
        progress.phase == Phase::Stopped && progress.failures >= 2
    })
    .await;
    cinema.until_counted(&model).await;
    model.shutdown().await;
    cinema.close().await;
}

#[test]
fn rows_lie_beside_no_other_kind_of_store() {
    assert!(beside("mysql://h/d").is_err());
}

/// What happened: rows that were counted anew after a scavenge had removed the event that created a show had fewer than
/// no seats, and a show that was deleted and created again had the seats of both.
async fn a_show_begins_with_its_creation(url: &str, rows_beside: [&str; 2]) {
    let mut cinema = Cinema::open(url).await;
    cinema.create(show(1), 10).await;
    cinema.reserve(show(1), 3).await;
    cinema.create(show(2), 10).await;
    cinema.reserve(show(2), 3).await;
    let model = cinema.model(rows_beside[0]).await;
    cinema.until_counted(&model).await;
    let stream = |number| gesta::StreamId::new(format!("show-{}", show(number))).expect("valid");
    let delete = gesta::DeleteStream {
        stream: stream(2),
        expected: ExpectedRevision::Any,
        kind: gesta::DeleteKind::Soft,
    };
    cinema.store.delete_stream(delete).await.expect("deleted");
    cinema.create(show(2), 20).await;
    cinema.until_counted(&model).await;
    model.shutdown().await;

    let truncate = gesta::SetStreamMetadata {
        stream: stream(1),
        expected: ExpectedRevision::Any,
        metadata: gesta::StreamMetadata::parse(r#"{"$tb":2}"#).expect("valid"),
    };
    let set = cinema.store.set_stream_metadata(truncate).await;
    set.expect("set");
    let scavenged = cinema.store.scavenge(gesta::RunMode::Real, |_| {}).await;
    assert!(scavenged.expect("scavenged").removed.events > 0);
    // What is left of the show is no show.
    cinema.expected.remove(&show(1));
    let model = cinema.model(rows_beside[1]).await;
    cinema.until_counted(&model).await;
    model.shutdown().await;
    cinema.close().await;
}

#[tokio::test]
async fn a_show_without_its_creation_has_no_row() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let memory = "sqlite::memory:";
    let files = [url_in(folder.path()), url_in(&folder.path().join("-2"))];
    std::fs::create_dir(folder.path().join("-2")).expect("a folder");
    a_show_begins_with_its_creation(memory, [&files[0], &files[1]]).await;

    let Some(server) = shared() else { return };
    let url = || format!("{}?schema={}", server.url(), fresh_schema());
    let urls = [url(), url()];
    for url in &urls {
        let created = gesta::schema::create(url, 1).await;
        created.expect("created");
    }
    a_show_begins_with_its_creation(memory, [&urls[0], &urls[1]]).await;
}
