//! Filters over all events.

use gesta_core::{Filter, Query, ReadAll, RecordedEvent};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

async fn filled(factory: &dyn StoreFactory) -> TestStore {
    let store = factory.create().await;
    for (name, event_type, tags) in [
        ("cart-1", "added", &["sku:1", "red"][..]),
        ("cart-1", "removed", &["sku:1"]),
        ("cart-2", "added", &["sku:2", "red", "big"]),
        ("cart", "added", &[]),
        ("cartoon-1", "drawn", &["red", "big"]),
        ("order-1", "placed", &["sku:1", "sku:2"]),
        ("order-1-x", "placed", &["big"]),
        ("order-2", "added", &["red", "sku:1", "big"]),
        ("Cart-1", "added", &["Red"]),
    ] {
        append(store.as_ref(), name, Any, vec![tagged(event_type, tags)]).await;
    }
    set_metadata(store.as_ref(), "cart-1", Any, "{}")
        .await
        .expect("set");
    store
}

/// Compares a filtered read, in both directions and several sizes of pages, with the plain rule.
async fn check(store: &TestStore, filter: Filter, rule: impl Fn(&RecordedEvent) -> bool) {
    let mut expected = by_log(everything(store.as_ref()).await);
    expected.retain(rule);
    for limit in [1, 2, 100] {
        let request = ReadAll::forwards().filter(filter.clone()).limit(limit);
        let (found, _) = all_pages(store.as_ref(), request).await;
        assert_eq!(by_log(found), expected, "{filter:?} by {limit}");
        let request = ReadAll::backwards().filter(filter.clone()).limit(limit);
        let (mut found, _) = all_pages(store.as_ref(), request).await;
        found.reverse();
        assert_eq!(by_log(found), expected, "{filter:?} backwards by {limit}");
    }
}

fn is_type(event: &RecordedEvent, names: &[&str]) -> bool {
    names.contains(&event.event_type.as_str())
}

fn has_tag(event: &RecordedEvent, name: &str) -> bool {
    event.tags.as_slice().iter().any(|tag| tag.as_str() == name)
}

/// Goal: an event passes if it has any of the types.
pub async fn by_any_of_the_types(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    for names in [
        &["added"][..],
        &["placed", "drawn"],
        &["added", "never"],
        &["never"],
        &["$metadata"],
    ] {
        check(&store, Filter::query(types(names)), |event| {
            is_type(event, names)
        })
        .await;
    }
}

/// Goal: an event passes only if it has all of the tags.
pub async fn by_all_of_the_tags(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    for names in [
        &["red"][..],
        &["red", "big"],
        &["big", "sku:1", "red"],
        &["sku:1", "never"],
        &["Red"],
    ] {
        let rule = |event: &RecordedEvent| names.iter().all(|name| has_tag(event, name));
        check(&store, Filter::query(tags(names)), rule).await;
    }
}

/// Goal: an event passes if the name of its stream begins with any of the prefixes.
pub async fn by_any_of_the_prefixes(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    for starts in [
        &["cart"][..],
        &["cart-", "order-1"],
        &["o"],
        &["never"],
        &["cart-1"],
        &["$$"],
    ] {
        let rule = |event: &RecordedEvent| {
            starts
                .iter()
                .any(|start| event.stream.as_str().starts_with(start))
        };
        check(&store, Filter::query(prefixes(starts)), rule).await;
    }
}

/// Goal: the category is the text before the first dash, or the whole name.
pub async fn by_any_of_the_categories(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    for names in [
        &["cart"][..],
        &["order", "cartoon"],
        &["never"],
        &["Cart"],
        &["order-1"],
    ] {
        let rule = |event: &RecordedEvent| {
            let name = event.stream.as_str();
            names.contains(&name.split('-').next().unwrap_or(name))
        };
        check(&store, Filter::query(categories(names)), rule).await;
    }
}

/// Goal: the conditions of one query must all hold.
pub async fn by_all_conditions_of_a_query(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let query = Query {
        types: types(&["added", "placed"]).types,
        tags: tags(&["sku:1"]).tags,
        stream_prefixes: prefixes(&["cart", "order-"]).stream_prefixes,
        categories: categories(&["order"]).categories,
    };
    check(&store, Filter::query(query), |event| {
        is_type(event, &["added", "placed"])
            && has_tag(event, "sku:1")
            && event.stream.as_str().starts_with("order-")
    })
    .await;
}

/// Goal: an event passes if it meets any of the queries, and an event that meets several comes once.
pub async fn by_any_of_the_queries(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let filter = Filter {
        any_of: vec![
            Query {
                categories: vec!["cart".into()],
                ..types(&["added"])
            },
            tags(&["red"]),
            types(&["placed"]),
        ],
    };
    check(&store, filter, |event| {
        (is_type(event, &["added"]) && event.stream.category() == "cart")
            || has_tag(event, "red")
            || is_type(event, &["placed"])
    })
    .await;
}

/// Goal: no query, or a query without a condition among others, lets everything through.
pub async fn without_conditions_lets_everything_through(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    check(&store, Filter::ALL, |_| true).await;
    let filter = Filter {
        any_of: vec![types(&["never"]), Query::default()],
    };
    check(&store, filter, |_| true).await;
}
