//! What is forgotten, and when.

use gesta_core::EventType;
use gesta_memory::MemoryStore;

use super::*;

/// Goal: however many streams there are, what a page needs is known until the page is over.
#[tokio::test]
async fn streams_are_forgotten_between_pages_alone() {
    let store = Arc::new(MemoryStore::new());
    let retry = Duration::from_secs(60);
    let life = store.incarnation().await.unwrap();
    let mut target = Target::open(store, life, 4, retry, true).await.unwrap();
    target.known_max = 1;
    let named = |n: u64| {
        let name = format!("s-{n}");
        (
            Arc::from(name.as_str()),
            StreamId::new(name.as_str()).unwrap(),
        )
    };
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
