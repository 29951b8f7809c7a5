//! The facade on SQLite: what opening, administration and closing do by URL.
#![cfg(feature = "sqlite")]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use gesta::{
    AllFrom, Checkpoint, Database, ErrorKind, EventData, EventStore, EventStoreExt, EventType,
    ExpectedRevision, Options, ReadAll, schema,
};

fn event() -> EventData {
    EventData::json(EventType::new("tested").expect("valid"), "{}")
}

fn url(directory: &tempfile::TempDir, name: &str) -> String {
    format!("sqlite:{}", directory.path().join(name).display())
}

#[tokio::test]
async fn a_store_is_made_used_checked_copied_and_begun_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let url_a = url(&directory, "a.db");
    let first = schema::create(&url_a, 1).await.expect("created");
    assert!(matches!(
        schema::create(&url_a, 1).await.expect_err("twice").kind(),
        ErrorKind::Schema(_)
    ));
    let migrated = schema::migrate(&url_a).await.expect("nothing to do");
    assert_eq!(migrated.from, migrated.to);

    let options = Options::default();
    let database = Database::open(&url_a, &options).await.expect("opened");
    let store = database.start(&options).expect("started");
    for name in ["cart-1", "cart-2"] {
        let appended = store.append_to(name, ExpectedRevision::NoStream, vec![event(), event()]);
        appended.await.expect("appended");
    }
    let report = database.verify(|_| ()).await.expect("read");
    assert!(report.is_healthy(), "{report:?}");
    let copy = directory.path().join("b.db");
    database.backup(&copy).await.expect("copied");
    let events = store.read_everything().await.expect("readable");
    store.shutdown().await.expect("shut down");

    let url_b = url(&directory, "b.db");
    let second = schema::new_incarnation(&url_b).await.expect("begun");
    assert_ne!(first, second);
    let restored = gesta::open(&url_b).await.expect("opened");
    assert_eq!(restored.read_everything().await.expect("readable"), events);
    let old = Checkpoint::in_log(first, 1, gesta::LogId(0), gesta::Position(1));
    let request = ReadAll::forwards().from(AllFrom::Checkpoint(old));
    let error = restored
        .read_all(request)
        .await
        .expect_err("of another life");
    assert!(matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)));
    restored.shutdown().await.expect("shut down");
}

#[tokio::test]
async fn wrong_urls_and_numbers_of_logs_are_refused() {
    for (url, logs) in [
        ("mysql://localhost/x", 1),
        ("sqlite:", 1),
        ("sqlite::memory:", 4),
    ] {
        let opened = gesta::open(url).logs(logs).await;
        let error = opened.map(drop).expect_err("refused");
        assert!(
            matches!(error.kind(), ErrorKind::InvalidArgument { .. }),
            "{error}"
        );
    }
    assert!(
        schema::print("sqlite::memory:", 1)
            .expect("text")
            .contains("CREATE TABLE")
    );
}

/// What happened: a mistyped path became a new store, which `verify` called healthy and `backup` copied. Now a store is
/// made only when that is asked for.
#[tokio::test]
async fn a_store_is_made_only_when_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = url(&directory, "sub/a.db");
    let error = gesta::open(&url)
        .await
        .map(drop)
        .expect_err("there is none");
    assert!(matches!(error.kind(), ErrorKind::Schema(_)), "{error}");
    assert!(error.to_string().contains("sub/a.db"), "{error}");
    let refusing = format!("{url}?create=false");
    assert!(
        gesta::open(&refusing).create().await.is_err(),
        "the URL says no"
    );
    assert_eq!(
        std::fs::read_dir(directory.path()).expect("lists").count(),
        0
    );
    let store = gesta::open(&url).create().await.expect("made");
    store.shutdown().await.expect("shut down");
    let store = gesta::open(&url).await.expect("there");
    store.shutdown().await.expect("shut down");
}
