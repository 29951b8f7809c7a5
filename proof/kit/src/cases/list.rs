//! Lists of streams.

use gesta_core::{DeleteKind, ListStreams, Revision};

use crate::factory::StoreFactory;
use crate::support::*;

/// Goal: streams come in the binary order of their names, whatever the size of the pages, with their last revision.
pub async fn is_in_binary_order(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    assert!(list(store.as_ref(), "", 10).await.is_empty());
    let mut sorted = vec![
        "b", "a", "B", "a-1", "a-10", "a-2", "é", "z", "Ω", "a b", "a_b",
    ];
    for (name, count) in sorted.iter().zip(1..) {
        append(store.as_ref(), name, NoStream, events(count)).await;
    }
    sorted.sort_unstable();
    for limit in [1, 2, 3, 11, 12] {
        assert_eq!(
            names(&list(store.as_ref(), "", limit).await),
            sorted,
            "by {limit}"
        );
    }
    let all = list(store.as_ref(), "", 100).await;
    let b = all
        .iter()
        .find(|info| info.stream.as_str() == "B")
        .expect("listed");
    assert_eq!(b.last_revision, Revision(2));
}

/// Goal: only names with the prefix are listed, and only after the given name.
pub async fn obeys_prefix_and_after(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["a", "cart", "cart-1", "cart-2", "cart-3", "cartoon", "d"] {
        append(store.as_ref(), name, NoStream, events(1)).await;
    }
    assert_eq!(
        names(&list(store.as_ref(), "cart-", 2).await),
        ["cart-1", "cart-2", "cart-3"]
    );
    assert_eq!(names(&list(store.as_ref(), "cart", 2).await).len(), 5);
    assert!(list(store.as_ref(), "e", 2).await.is_empty());
    for (prefix, after, expected) in [
        ("cart-", "cart-1", vec!["cart-2", "cart-3"]),
        ("cart-", "cart-15", vec!["cart-2", "cart-3"]),
        ("cart-", "a", vec!["cart-1", "cart-2", "cart-3"]),
        ("cart-", "z", vec![]),
        ("", "cartoon", vec!["d"]),
    ] {
        let request = ListStreams {
            prefix: prefix.into(),
            after: Some(stream(after)),
            limit: 10,
        };
        let page = store.list_streams(request).await.expect("listed");
        assert_eq!(names(&page.streams), expected, "{prefix:?} after {after:?}");
        assert_eq!(page.next, None);
    }
}

/// Goal: names of the system are listed only if they are asked for.
pub async fn shows_names_of_the_system_if_asked(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["a", "$sys", "b"] {
        append(store.as_ref(), name, NoStream, events(1)).await;
    }
    set_metadata(store.as_ref(), "a", Any, "{}")
        .await
        .expect("set");
    assert_eq!(names(&list(store.as_ref(), "", 1).await), ["a", "b"]);
    assert_eq!(names(&list(store.as_ref(), "$", 1).await), ["$$a", "$sys"]);
    assert_eq!(names(&list(store.as_ref(), "$s", 1).await), ["$sys"]);
}

/// Goal: deleted streams are left out, and pages go on after them.
pub async fn leaves_deleted_streams_out(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for i in 0..12 {
        let name = format!("s-{i:02}");
        append(store.as_ref(), &name, NoStream, events(1)).await;
        let kind = match i % 4 {
            1 => DeleteKind::Soft,
            2 => DeleteKind::Tombstone,
            _ => continue,
        };
        delete(store.as_ref(), &name, Any, kind)
            .await
            .expect("deleted");
    }
    append(store.as_ref(), "s-05", NoStream, events(1)).await;
    let expected = ["s-00", "s-03", "s-04", "s-05", "s-07", "s-08", "s-11"];
    for limit in [1, 3, 100] {
        assert_eq!(
            names(&list(store.as_ref(), "", limit).await),
            expected,
            "by {limit}"
        );
    }
}
