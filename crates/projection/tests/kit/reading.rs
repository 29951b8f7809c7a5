//! The rows of views as readers get them, a page after the other.

use gesta_core::{Filter, RecordedEvent, Timestamp};
use gesta_projection::{ApplyError, Error, View, ViewReader, columns};
use uuid::Uuid;

use super::fixtures::{Balances, of_category};
use super::versions::BalancesV2;
use super::world::{World, quick, until_so};

/// Goal: pages follow each other in the order of the keys, each row once, and end; a reader sees what readers see, and
/// a limit out of range is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_follow_each_other() {
    let world = World::new().await;
    let reader = ViewReader::<Balances>::of(world.target.clone()).expect("plain names");
    let early = reader.page(None, 10).await;
    assert!(matches!(early, Err(Error::Target(_))), "{early:?}");
    let process = world.started(quick(), Balances).await;
    assert_eq!(reader.page(None, 10).await.expect("a page"), []);
    world.append_many(20).await;
    world.applies_all(&process, "balances").await;
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = reader.page(after.as_ref(), 3).await.expect("a page");
        assert!(page.len() <= 3);
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        all.extend(page);
    }
    let keys: Vec<&str> = all.iter().map(|(key, _)| key.as_str()).collect();
    let expected: Vec<String> = (0..7).map(|n| format!("account-{n}")).collect();
    assert_eq!(keys, expected);
    let row = &all[2].1;
    assert_eq!((row.total, row.events), (2 + 9 + 16, 3));
    assert_eq!(row.note.as_deref(), Some("even 16"));
    for limit in [0, 10_001] {
        let refused = reader.page(None, limit).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    process.shutdown().await;
    // A later version shows its own rows under the name.
    let process = world.started(quick(), BalancesV2).await;
    until_so(
        async || world.row("balances").await.id.version == 2,
        "a switch",
    )
    .await;
    world.applies_all(&process, "balances").await;
    let later = ViewReader::<BalancesV2>::of(world.target.clone()).expect("plain names");
    assert_eq!(later.page(None, 10).await.expect("a page").len(), 7);
    process.shutdown().await;
}

columns! {
    /// Nothing but how often it was seen.
    struct Seen {
        times: i64,
    }
}

/// A view whose key is what a type of column is made of.
struct Keyed<const KIND: u8>;

macro_rules! keyed {
    ($kind:literal, $name:literal, $columns:expr, $key:ty, $of:expr) => {
        impl View for Keyed<$kind> {
            const NAME: &'static str = $name;
            const VERSION: u32 = 1;
            const KEY: &'static [&'static str] = $columns;
            type Key = $key;
            type Row = Seen;

            fn filter(&self) -> Filter {
                of_category("account")
            }

            fn key(&self, event: &RecordedEvent) -> Option<$key> {
                let of: fn(i64) -> $key = $of;
                Some(of(super::fixtures::number(event).ok()?))
            }

            fn evolve(&self, row: &mut Option<Seen>, _: &RecordedEvent) -> Result<(), ApplyError> {
                row.get_or_insert(Seen { times: 0 }).times += 1;
                Ok(())
            }
        }
    };
}

keyed!(0, "by_uuid", &["id"], Uuid, |n| Uuid::from_u128(
    n.unsigned_abs().into()
));
keyed!(1, "by_bytes", &["id"], Vec<u8>, |n| n
    .to_be_bytes()
    .to_vec());
keyed!(2, "by_time", &["id"], Timestamp, Timestamp);
keyed!(3, "by_flag", &["flag", "id"], (bool, i64), |n| (
    n % 2 == 1,
    n
));
keyed!(
    4,
    "by_three",
    &["name", "flag", "id"],
    (String, bool, i64),
    |n| (format!("{}", n / 5), n % 2 == 1, n)
);

async fn pages_of<V: View<Row = Seen>>(world: &World, view: V)
where
    V::Key: std::fmt::Debug,
{
    let process = world.started(quick(), view).await;
    world.applies_all(&process, V::NAME).await;
    let reader = ViewReader::<V>::of(world.target.clone()).expect("plain names");
    let whole = reader.page(None, 1_000).await.expect("a page");
    let mut keys: Vec<V::Key> = whole.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(keys.len(), 20);
    let (mut found, mut after) = (Vec::new(), None);
    while let Some(row) = reader.page(after.as_ref(), 1).await.expect("a page").pop() {
        after = Some(row.0.clone());
        found.push(row);
    }
    assert_eq!(found, whole);
    keys.sort();
    assert!(whole.iter().map(|(key, _)| key).eq(&keys), "{whole:?}");
    process.shutdown().await;
}

/// Goal: keys of all kinds, and of several columns, are compared as they are ordered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_all_kinds_are_gone_through() {
    let world = World::new().await;
    world.append_many(20).await;
    pages_of(&world, Keyed::<0>).await;
    pages_of(&world, Keyed::<1>).await;
    pages_of(&world, Keyed::<2>).await;
    pages_of(&world, Keyed::<3>).await;
    pages_of(&world, Keyed::<4>).await;
}
