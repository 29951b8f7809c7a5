//! Filters as they are stored with a version, so that whoever looks at it can tell which events it waits for.

use gesta_core::{EventType, Filter, Query, Tag};
use serde::{Deserialize, Serialize};

/// A query as it is stored. Its fields are those of the HTTP API.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Stored {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    types: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stream_prefixes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<String>,
}

fn texts<T>(values: &[T], text: impl Fn(&T) -> &str) -> Vec<String> {
    values.iter().map(|value| text(value).to_owned()).collect()
}

/// Returns the text of a filter, for a target to store: a JSON array of its queries.
#[must_use]
pub fn filter_to_text(filter: &Filter) -> String {
    let queries = filter.any_of.iter().map(|query| Stored {
        types: texts(&query.types, EventType::as_str),
        tags: texts(&query.tags, Tag::as_str),
        stream_prefixes: query.stream_prefixes.clone(),
        categories: query.categories.clone(),
    });
    // A list of texts is always JSON.
    serde_json::to_string(&queries.collect::<Vec<Stored>>()).unwrap_or_default()
}

/// Reads the text of a filter; `None` if a later program has written what this one does not know.
#[must_use]
pub fn filter_from_text(text: &str) -> Option<Filter> {
    let queries: Vec<Stored> = serde_json::from_str(text).ok()?;
    let any_of = queries.into_iter().map(|query| {
        let types = query.types.into_iter().map(EventType::new);
        let tags = query.tags.into_iter().map(Tag::new);
        Some(Query {
            types: types.collect::<Result<_, _>>().ok()?,
            tags: tags.collect::<Result<_, _>>().ok()?,
            stream_prefixes: query.stream_prefixes,
            categories: query.categories,
        })
    });
    let any_of = any_of.collect::<Option<Vec<Query>>>()?;
    Some(Filter { any_of })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_comes_back_as_it_was() {
        let typed = Query {
            types: vec![EventType::new("noted").expect("valid")],
            tags: vec![Tag::new("a=1").expect("valid")],
            stream_prefixes: vec!["x \"y\"".to_owned()],
            categories: Vec::new(),
        };
        let any_of = vec![typed, Query::category("order")];
        for filter in [Filter::ALL, Filter { any_of }] {
            let text = filter_to_text(&filter);
            assert_eq!(filter_from_text(&text), Some(filter), "{text}");
        }
        assert_eq!(filter_to_text(&Filter::ALL), "[]");
        for unknown in ["", "[{\"sizes\": []}]", "[{\"types\": [\"\"]}]"] {
            assert_eq!(filter_from_text(unknown), None, "{unknown}");
        }
    }
}
