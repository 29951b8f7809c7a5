//! A filter in a form that is quick for many events: long lists become sets.

use std::collections::HashSet;

use gesta_core::{Filter, Query, RecordedEvent};

/// Number of values above which a set is faster than looking at each value.
const LIST_MAX: usize = 8;

/// Tells which events pass a filter.
#[derive(Debug)]
pub(crate) struct Matcher {
    /// The queries; none if every event passes.
    any_of: Vec<Prepared>,
}

#[derive(Debug)]
struct Prepared {
    /// The conditions that are checked one by one: the query without the lists that became sets.
    query: Query,
    types: Option<HashSet<Box<str>>>,
    categories: Option<HashSet<Box<str>>>,
}

impl Matcher {
    pub(crate) fn new(filter: &Filter) -> Self {
        if filter.is_all() {
            return Self { any_of: Vec::new() };
        }
        Self {
            any_of: filter.any_of.iter().map(Prepared::new).collect(),
        }
    }

    pub(crate) fn is_all(&self) -> bool {
        self.any_of.is_empty()
    }

    pub(crate) fn matches(&self, event: &RecordedEvent) -> bool {
        self.any_of.is_empty() || self.any_of.iter().any(|query| query.matches(event))
    }
}

impl Prepared {
    fn new(query: &Query) -> Self {
        let mut query = query.clone();
        let types = (query.types.len() > LIST_MAX).then(|| {
            let types = std::mem::take(&mut query.types);
            types.iter().map(|t| t.as_str().into()).collect()
        });
        let categories = (query.categories.len() > LIST_MAX).then(|| {
            let categories = std::mem::take(&mut query.categories);
            categories.iter().map(|c| c.as_str().into()).collect()
        });
        Self {
            query,
            types,
            categories,
        }
    }

    fn matches(&self, event: &RecordedEvent) -> bool {
        let in_set = |set: &Option<HashSet<Box<str>>>, value: &str| {
            set.as_ref().is_none_or(|set| set.contains(value))
        };
        in_set(&self.types, event.event_type.as_str())
            && in_set(&self.categories, event.stream.category())
            && self.query.matches(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::event;
    use gesta_core::EventType;

    #[test]
    fn gives_the_answers_of_the_filter() {
        let few = Query {
            categories: vec!["cart".into()],
            ..Query::default()
        };
        let many = Query {
            types: (0..20)
                .map(|i| EventType::new(format!("t{i}")).expect("valid"))
                .chain([event(1, "a").event_type.clone()])
                .collect(),
            categories: (0..20).map(|i| format!("c{i}")).collect(),
            ..Query::default()
        };
        let filters = [
            Filter::ALL,
            Filter::query(Query::default()),
            Filter::query(few.clone()),
            Filter::query(many.clone()),
            Filter {
                any_of: vec![few, many],
            },
        ];
        for filter in filters {
            let matcher = Matcher::new(&filter);
            for name in ["cart-1", "c7-1", "c70-1", "x"] {
                let event = event(1, name);
                assert_eq!(
                    matcher.matches(&event),
                    filter.matches(&event),
                    "{filter:?} {name}"
                );
            }
        }
    }
}
