//! Narrows reads by a filter as far as the database can.
//!
//! A filter is *any of* queries. The statements take one list per kind of condition, so each list is the
//! union over the queries, and a kind counts only if every query sets it: what comes back is a superset,
//! exact for a single query (tags: by the first tag, then all of them).

use gesta_core::{Filter, Query};
use tokio_postgres::types::ToSql;

/// The conditions that the database checks for a filter.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Narrowing<'a> {
    /// The filter sets no conditions.
    Nothing,
    /// The filter sets these conditions.
    To(Conditions<'a>),
}

/// The conditions that an event must meet. `None` holds for every event.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Conditions<'a> {
    types: Option<Vec<&'a str>>,
    prefixes: Option<Vec<&'a str>>,
    categories: Option<Vec<&'a str>>,
    tags_all: Option<Vec<&'a str>>,
    pub(crate) tags_any: Option<Vec<&'a str>>,
}

impl<'a> Narrowing<'a> {
    pub(crate) fn of(filter: &'a Filter) -> Self {
        if filter.is_all() {
            return Self::Nothing;
        }
        let queries = &filter.any_of;
        let tags_all = match queries.as_slice() {
            [query] if query.tags.len() > 1 => Some(tags(query).collect()),
            _ => None,
        };
        Self::To(Conditions {
            types: union(queries, |query| {
                query
                    .types
                    .iter()
                    .map(gesta_core::EventType::as_str)
                    .collect()
            }),
            prefixes: union(queries, |query| {
                query.stream_prefixes.iter().map(String::as_str).collect()
            }),
            categories: union(queries, |query| {
                query.categories.iter().map(String::as_str).collect()
            }),
            tags_all,
            tags_any: union(queries, |query| tags(query).take(1).collect()),
        })
    }
}

fn tags(query: &Query) -> impl Iterator<Item = &str> {
    query.tags.iter().map(gesta_core::Tag::as_str)
}

/// Returns all values of all queries, or `None` if a query has none and so allows any.
fn union<'a>(
    queries: &'a [Query],
    values: impl Fn(&'a Query) -> Vec<&'a str>,
) -> Option<Vec<&'a str>> {
    let mut all = Vec::new();
    for query in queries {
        let values = values(query);
        if values.is_empty() {
            return None;
        }
        all.extend(values);
    }
    // No stored text holds a NUL, and PostgreSQL refuses one in a bind.
    all.retain(|value| !value.contains('\0'));
    all.sort_unstable();
    all.dedup();
    Some(all)
}

impl Conditions<'_> {
    /// Returns the binds $6 and following of the filtered statements.
    pub(crate) fn params(&self) -> impl Iterator<Item = &(dyn ToSql + Sync)> {
        let params: [&(dyn ToSql + Sync); 4] = [
            &self.types,
            &self.prefixes,
            &self.categories,
            &self.tags_all,
        ];
        let tags = self
            .tags_any
            .as_ref()
            .map(|_| &self.tags_any as &(dyn ToSql + Sync));
        params.into_iter().chain(tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{EventType, Tag};

    fn query(types: &[&str], tags: &[&str], prefixes: &[&str]) -> Query {
        Query {
            types: types
                .iter()
                .map(|text| EventType::new(*text).expect("valid"))
                .collect(),
            tags: tags
                .iter()
                .map(|text| Tag::new(*text).expect("valid"))
                .collect(),
            stream_prefixes: prefixes.iter().map(ToString::to_string).collect(),
            categories: Vec::new(),
        }
    }

    #[test]
    fn a_kind_counts_only_if_every_query_sets_it() {
        let filter = Filter {
            any_of: vec![
                query(&["A", "B"], &["x", "y"], &[]),
                query(&["B"], &["z"], &["cart-"]),
            ],
        };
        let Narrowing::To(conditions) = Narrowing::of(&filter) else {
            panic!("narrows")
        };
        assert_eq!(conditions.types, Some(vec!["A", "B"]));
        assert_eq!(conditions.prefixes, None);
        assert_eq!(conditions.tags_any, Some(vec!["x", "z"]));
        assert_eq!(conditions.tags_all, None);
        assert_eq!(conditions.params().count(), 5);
        assert_eq!(Narrowing::of(&Filter::ALL), Narrowing::Nothing);
    }
}
