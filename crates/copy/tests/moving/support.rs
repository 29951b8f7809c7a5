//! Stores that move in tests, and what they must hold.

use std::path::Path;
use std::time::Duration;

use gesta::{Database, DatabaseStore, Options};
use gesta_copy::{Move, MoveReport, MoveSettings, MoveStep, Target, Undone, undo};
use gesta_core::backend::RunMode;
use gesta_core::{
    DeleteKind, DeleteStream, ErrorKind, EventData, EventStore, EventStoreExt, EventType,
    ExpectedRevision, RecordedEvent, Result, StreamId, Tag, Tags,
};
use gesta_rig::{fresh_schema, shared};

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

fn event(data: &str, tag: &str) -> EventData {
    let mut made = EventData::json(
        EventType::new(format!("type-{tag}")).unwrap(),
        data.to_owned(),
    );
    made.tags = Tags::new(vec![Tag::new(tag).unwrap()]).unwrap();
    made
}

pub(crate) async fn append(store: &DatabaseStore, stream: &str) -> Result<()> {
    let any = ExpectedRevision::Any;
    let done = store
        .append_to(stream, any, vec![event("{}", stream)])
        .await;
    done.map(drop)
}

pub(crate) async fn fill(url: &str, events: usize) {
    let store = Options::creating().open_database(url).await.unwrap();
    for n in 0..events {
        append(&store, &format!("cart-{}", n % 7)).await.unwrap();
    }
    let delete = DeleteStream {
        stream: StreamId::new("cart-3").unwrap(),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Soft,
    };
    store.delete_stream(delete).await.unwrap();
    append(&store, "last-1").await.unwrap();
    store.scavenge(RunMode::Real, |_| ()).await.unwrap();
    store.shutdown().await.unwrap();
}

pub(crate) async fn all(url: &str) -> Vec<RecordedEvent> {
    let store = Options::default().open_database(url).await.unwrap();
    let events = store.read_everything().await.unwrap();
    store.shutdown().await.unwrap();
    events
}

pub(crate) async fn is_healthy(url: &str) {
    let database = Database::open(url, &Options::default()).await.unwrap();
    let report = database.verify(|_| ()).await.unwrap();
    assert!(report.is_healthy(), "{url}: {report:?}");
    database.close().await;
}

/// Whether a store takes an append.
pub(crate) async fn accepts(url: &str) -> bool {
    match Options::default().open_database(url).await {
        Ok(store) => {
            let appended = append(&store, "probe-1").await;
            store.shutdown().await.unwrap();
            appended.is_ok()
        }
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Schema(_)) || error.is_retryable(),
                "{error}"
            );
            false
        }
    }
}

pub(crate) fn settings() -> MoveSettings {
    MoveSettings {
        batch_rows: 20,
        ..MoveSettings::default()
    }
}

pub(crate) async fn to_the_end(mut moved: Move) -> Result<MoveReport> {
    loop {
        match moved.step().await {
            Ok(MoveStep::Moved(report)) => return Ok(report),
            Ok(_) => {}
            Err(error) => {
                moved.close().await;
                return Err(error);
            }
        }
    }
}

pub(crate) async fn move_store(from: &str, to: &str) -> Result<MoveReport> {
    to_the_end(Move::open(from, to, settings()).await?).await
}

pub(crate) async fn undo_move(from: &str, to: &str, known: Target) -> Result<Undone> {
    undo(from, to, known, |_| ()).await
}

pub(crate) fn sqlite(home: &Path, name: &str) -> String {
    format!("sqlite:{}", home.join(name).display())
}

pub(crate) fn postgres() -> Option<String> {
    let url = shared()?.create_database(&fresh_schema()).unwrap();
    Some(format!("{url}?sslmode=disable"))
}

/// The sources of a test: one in a file and one in a database; none where PostgreSQL is not installed.
pub(crate) fn sources(home: &Path) -> Vec<String> {
    match postgres() {
        Some(url) => vec![url, sqlite(home, "source.db")],
        None => Vec::new(),
    }
}

/// Steps until something is done.
pub(crate) async fn until(moved: &mut Move, done: impl Fn(&MoveStep) -> bool) -> MoveStep {
    let steps = async {
        loop {
            let step = moved.step().await.unwrap();
            if done(&step) {
                return step;
            }
        }
    };
    let step = tokio::time::timeout(PATIENCE, steps).await;
    step.expect("done in time")
}

/// Moves a store until something is done; then the mover dies.
pub(crate) async fn move_until(from: &str, to: &str, done: impl Fn(&MoveStep) -> bool) {
    let mut moved = Move::open(from, to, settings()).await.unwrap();
    until(&mut moved, done).await;
    moved.close().await;
}

/// A plain session in the database of a store, as superuser, that calls itself so.
pub(crate) async fn session(url: &str, program: &str) -> tokio_postgres::Client {
    let client = gesta_rig::connect(url).await.unwrap();
    let set = format!("SET search_path TO gesta; SET application_name TO '{program}'");
    client.batch_execute(&set).await.unwrap();
    client
}

/// The name of the database in a URL.
pub(crate) fn database_of(url: &str) -> &str {
    let (_, name) = url.rsplit_once('/').unwrap();
    name.split('?').next().unwrap()
}

/// Runs a statement that needs a database without sessions, once those of whoever used it have ended.
async fn once_unused(sql: &str) {
    let begun = tokio::time::Instant::now();
    while let Err(error) = shared().unwrap().execute(sql) {
        assert!(begun.elapsed() < PATIENCE, "{sql}: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A copy of a database that nobody uses any more, as a backup of this moment would be.
pub(crate) async fn backup_of(url: &str) -> String {
    let name = fresh_schema();
    let template = database_of(url);
    once_unused(&format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
    format!("{}?sslmode=disable", shared().unwrap().url_for(&name))
}

/// Gives a database another name.
pub(crate) async fn rename(from: &str, to: &str) {
    once_unused(&format!("ALTER DATABASE {from} RENAME TO {to}")).await;
}
