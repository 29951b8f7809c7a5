//! Names are compared byte by byte, whatever they contain.

use gesta_core::limits::{EVENT_TYPE_BYTES_MAX, STREAM_NAME_BYTES_MAX};
use gesta_core::{EventData, EventStoreExt, Filter, Query, ReadAll, Tags};

use crate::factory::StoreFactory;
use crate::support::*;

/// Names with spaces, and with characters that mean something to SQL, to HTTP, to a path or to the store.
const ASCII: &[&str] = &[
    "a", "A", "a ", " a", "a  ", "ab", "a_", "a%", "_", "%", "%%", "a\\", "\\", "a'b", "a''b",
    "a\"b", "a`b", "a;b", "--", "-", "a-", "-a", "a/b", "/", "a?b=c&d", "a#b", "%2F", "+", "*",
    ".", "..", "{a}", "{", "}", "{}", "$1", "$$", "$custom", "null", "0",
];

/// Letters that look the same, that differ in their case, and that are far from ASCII.
const UNICODE: &[&str] = &[
    "é",
    "e\u{301}",
    "ﬁ",
    "fi",
    "ß",
    "ss",
    "SS",
    "i",
    "I",
    "ı",
    "İ",
    "σ",
    "ς",
    "größe",
    "日本",
    "🙂",
    "𝒳",
    "\u{feff}a",
    "a\u{200b}",
    "a\u{a0}",
    "\u{e000}",
    "\u{fffd}",
    "\u{10ffff}",
    "a\u{300}",
    "\u{202e}a",
];

/// Returns names that a careless store takes for each other, or reads as something else.
fn odd_names() -> Vec<String> {
    let names = ASCII.iter().chain(UNICODE).copied();
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.push("x".repeat(512));
    names.push(format!("{}y", "x".repeat(511)));
    names
}

/// Goal: streams with odd names are kept apart, and listed in the binary order of their names.
pub async fn of_streams_are_kept_apart(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut odd = odd_names();
    // `$$` is the metadata stream of a stream without a name.
    odd.retain(|name| name != "$$");
    odd.push("x".repeat(STREAM_NAME_BYTES_MAX));
    odd.push("é".repeat(STREAM_NAME_BYTES_MAX / 2));
    for name in &odd {
        let named = EventData {
            data: name.clone().into(),
            ..event("named")
        };
        append(store.as_ref(), name, NoStream, vec![named]).await;
    }
    for name in &odd {
        let found = store.read_whole_stream(name).await.expect("readable");
        assert_eq!(found.len(), 1, "{name:?}");
        assert_eq!(found[0].stream.as_str(), name);
        assert_eq!(&found[0].data[..], name.as_bytes());
    }
    odd.sort();
    let (system, ordinary): (Vec<&String>, Vec<&String>) =
        odd.iter().partition(|name| name.starts_with('$'));
    assert_eq!(names(&list(store.as_ref(), "", 7).await), ordinary);
    assert_eq!(names(&list(store.as_ref(), "$", 7).await), system);
}

/// Goal: event types with odd names are kept apart by filters.
pub async fn of_types_are_kept_apart(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut odd = odd_names();
    odd.push("t".repeat(EVENT_TYPE_BYTES_MAX));
    odd.dedup();
    let all = odd.iter().map(|name| event(name)).collect();
    append(store.as_ref(), "a", NoStream, all).await;
    for name in &odd {
        let filter = ReadAll::forwards().filter(Filter::query(types(&[name])));
        let (found, _) = all_pages(store.as_ref(), filter).await;
        let found: Vec<_> = found
            .iter()
            .map(|event| event.event_type.as_str())
            .collect();
        assert_eq!(found, [name]);
    }
}

/// Goal: tags with odd names are kept apart by filters.
pub async fn of_tags_are_kept_apart(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut odd = odd_names();
    odd.retain(|name| name.len() <= 256);
    odd.push("t".repeat(256));
    odd.push("a,b".into());
    let all = odd.iter().map(|name| tagged("tagged", &[name, "common"]));
    append(store.as_ref(), "a", NoStream, all.collect()).await;
    for name in &odd {
        let filter = ReadAll::forwards().filter(Filter::query(tags(&[name, "common"])));
        let (found, _) = all_pages(store.as_ref(), filter).await;
        let expected = Tags::new(vec![tag(name), tag("common")]).expect("different");
        let found: Vec<_> = found.into_iter().map(|event| event.tags).collect();
        assert_eq!(found, [expected]);
    }
}

/// Goal: prefixes and categories are literal text, not patterns.
pub async fn in_prefixes_and_categories_are_literal(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let odd: Vec<String> = [
        "a%b-1",
        "axb-1",
        "a_b-1",
        "A_b-1",
        "a\\b-1",
        "a'b-1",
        "é-1",
        "e\u{301}-1",
    ]
    .iter()
    .map(|&name| name.to_owned())
    .collect();
    for name in &odd {
        append(store.as_ref(), name, NoStream, events(1)).await;
    }
    for name in &odd {
        let category = name.trim_end_matches("-1");
        let queries: [Query; 3] = [
            prefixes(&[&name[..name.len() - 1]]),
            prefixes(&[name]),
            categories(&[category]),
        ];
        for query in queries {
            let request = ReadAll::forwards().filter(Filter::query(query.clone()));
            let (found, _) = all_pages(store.as_ref(), request).await;
            let found: Vec<_> = found.iter().map(|event| event.stream.as_str()).collect();
            assert_eq!(found, [name], "{query:?}");
        }
        assert_eq!(
            names(&list(store.as_ref(), &format!("{category}-"), 10).await),
            [name]
        );
    }
}
