//! Filters as documents and addresses hold them.
//!
//! Invariant: an error names the query and the list in which something is wrong.
//! Not here: which parameters an address has (`read`).

use gesta_core::{EventType, Filter, Query, Tag, limits};
use gesta_wire::json::{Bounded, Object};
use gesta_wire::request::QueryBody;

use crate::problem::{Problem, Result};
use crate::uri;

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
