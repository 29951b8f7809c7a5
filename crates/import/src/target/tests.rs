//! What is forgotten, and when.

use gesta_core::EventType;
use gesta_memory::MemoryStore;

use super::*;

fn named(n: u64) -> (Arc<str>, StreamId) {
    let name = format!("s-{n}");
    (
        Arc::from(name.as_str()),
        StreamId::new(name.as_str()).unwrap(),
    )
}

/// Goal: however many streams there are, what a page needs is known until the page is over.
#[tokio::test]
async fn streams_are_forgotten_between_pages_alone() {
    let store = Arc::new(MemoryStore::new());
    let retry = Duration::from_secs(60);
    let life = store.incarnation().await.unwrap();
    let mut target = Target::open(store, life, 4, retry, true).await.unwrap();
    target.known_max = 1;
    target.prepare((0..3).map(named).collect()).await.unwrap();
    for n in 0..3 {
        let ready = Ready {
            key: named(n).0,
            sequence: 0,
            place: Place::number(1),
            event: EventData::json(EventType::new("t").unwrap(), "{}"),
        };
        target.push(ready).await.unwrap();
        target.drain().await.unwrap();
    }
    assert_eq!((target.stored, target.streams()), (3, 3));
    target.forget_many();
    assert!(target.known("s-1").is_none());
    assert_eq!(target.streams(), 3);
    // What is not known is read, and not taken for new.
    let error = target.prepare(vec![named(1)]).await.expect_err("read");
    assert!(error.to_string().contains("did not write"), "{error}");
}

/// What happened: streams whose metadata were set, or that were closed, were remembered without a bound.
#[tokio::test]
async fn streams_that_were_changed_are_forgotten_too() {
    let store = Arc::new(MemoryStore::new());
    let retry = Duration::from_secs(60);
    let life = store.incarnation().await.unwrap();
    let mut target = Target::open(store, life, 4, retry, true).await.unwrap();
    target.known_max = 2;
    for n in 0..10 {
        let (key, stream) = named(n);
        target
            .prepare(vec![(Arc::clone(&key), stream)])
            .await
            .unwrap();
        target.see(&key, 0);
        target.forget(&key);
        target.forget_many();
        let remembered = target.known.len() + target.changed.len();
        assert!(remembered <= 2, "{remembered} after {n}");
    }
    assert_eq!(target.streams(), 10);
}
