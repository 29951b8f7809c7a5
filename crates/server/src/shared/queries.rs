//! Filters as documents and addresses hold them.
//!
//! Invariant: an error names the query and the list in which something is wrong.
//! Not here: which parameters an address has (`read`), compiled patterns (`patterns`).

use gesta_core::{EventType, Filter, Query, Tag, limits};
use gesta_wire::json::{Bounded, Object};
use gesta_wire::request::QueryBody;

use crate::shared::problem::{Problem, Result};
use crate::shared::uri;

/// Memory that a value of a filter holds beside its text, in bytes.
const VALUE_BYTES: usize = 64;

/// A filter as documents hold it.
pub(crate) type FilterBody = Bounded<Object<QueryBody>, { limits::FILTER_VALUES_MAX }>;

/// Makes the filter that stands in a document under the name `field`.
pub(crate) fn filter_of(field: &str, queries: FilterBody) -> Result<Filter> {
    let names = ["types", "tags", "stream_prefixes", "categories"];
    let queries = queries.0.into_iter().enumerate();
    let any_of = queries
        .map(|(i, Object(document))| query(&format!("{field}[{i}]."), names, document))
        .collect::<Result<_>>()?;
    Ok(Filter { any_of })
}

/// Returns how much memory a filter holds, roughly, in bytes.
pub(crate) fn filter_bytes(filter: &Filter) -> usize {
    let of_query = |query: &Query| {
        let types = query.types.iter().map(EventType::as_str);
        let tags = query.tags.iter().map(Tag::as_str);
        let prefixes = query.stream_prefixes.iter().map(String::as_str);
        let categories = query.categories.iter().map(String::as_str);
        let values = types.chain(tags).chain(prefixes).chain(categories);
        let of_values: usize = values.map(|value| VALUE_BYTES + value.len()).sum();
        size_of::<Query>() + of_values
    };
    filter.any_of.iter().map(of_query).sum()
}

/// Makes a query of its lists, which are called by these names.
pub(crate) fn query(prefix: &str, names: [&str; 4], document: QueryBody) -> Result<Query> {
    let [types, tags, stream_prefixes, categories] = names.map(|name| format!("{prefix}{name}"));
    Ok(Query {
        types: each(document.types, |t| {
            EventType::new(t).map_err(|error| Problem::invalid_at(&types, &error))
        })?,
        tags: each(document.tags, |t| {
            Tag::new(t).map_err(|error| Problem::invalid_at(&tags, &error))
        })?,
        stream_prefixes: each(document.stream_prefixes, |p| {
            uri::name_part(&stream_prefixes, &p)
        })?,
        categories: each(document.categories, |c| uri::name_part(&categories, &c))?,
    })
}

fn each<T>(texts: Vec<String>, check: impl Fn(String) -> Result<T>) -> Result<Vec<T>> {
    texts.into_iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_a_filter_counts() {
        let text = "x".repeat(200);
        let filters = [
            Filter::category(&text),
            Filter::stream_prefix(&text),
            Filter::event_type(&*text).expect("valid"),
            Filter::tag(&*text).expect("valid"),
        ];
        for filter in &filters {
            assert!(filter_bytes(filter) > text.len(), "{filter:?}");
        }
        let all = filters.iter().flat_map(|filter| filter.any_of.clone());
        let sum: usize = filters.iter().map(filter_bytes).sum();
        assert_eq!(filter_bytes(&Filter::any_of(all)), sum);
        assert_eq!(filter_bytes(&Filter::ALL), 0);
    }
}
