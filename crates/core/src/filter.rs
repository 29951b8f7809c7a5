//! Filters of reads of all events and of subscriptions to all events.

use crate::error::{Error, Result};
use crate::event::{RecordedEvent, Tags};
use crate::ids::{EventType, StreamId, Tag};
use crate::limits::{FILTER_VALUES_MAX, PAGE_SCAN_MAX};

/// Conditions, all of which an event must meet. An empty list sets no condition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// The type of the event must be one of these.
    pub types: Vec<EventType>,
    /// The event must carry all of these tags.
    pub tags: Vec<Tag>,
    /// The name of the event's stream must start with one of these.
    pub stream_prefixes: Vec<String>,
    /// The category of the event's stream must be one of these.
    pub categories: Vec<String>,
}

impl Query {
    /// Asks for streams of this category: the text before the first `-` of their names, or the whole name.
    #[must_use]
    pub fn category(category: impl Into<String>) -> Self {
        Self::default().or_category(category)
    }

    /// Asks for streams whose names begin with this text.
    #[must_use]
    pub fn stream_prefix(prefix: impl Into<String>) -> Self {
        Self {
            stream_prefixes: vec![prefix.into()],
            ..Self::default()
        }
    }

    /// Asks for events of this type.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no type.
    pub fn event_type(event_type: impl TryInto<EventType, Error: Into<Error>>) -> Result<Self> {
        Self::default().or_event_type(event_type)
    }

    /// Asks for events with this tag.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no tag.
    pub fn tag(tag: impl TryInto<Tag, Error: Into<Error>>) -> Result<Self> {
        Self::default().and_tag(tag)
    }

    /// Asks for streams of this category too.
    #[must_use]
    pub fn or_category(mut self, category: impl Into<String>) -> Self {
        self.categories.push(category.into());
        self
    }

    /// Asks for events of this type too. A query that asked for no type yet asks for this one alone.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no type.
    pub fn or_event_type(
        mut self,
        event_type: impl TryInto<EventType, Error: Into<Error>>,
    ) -> Result<Self> {
        self.types.push(event_type.try_into().map_err(Into::into)?);
        Ok(self)
    }

    /// Asks only for those of the events that have this tag besides.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no tag.
    pub fn and_tag(mut self, tag: impl TryInto<Tag, Error: Into<Error>>) -> Result<Self> {
        self.tags.push(tag.try_into().map_err(Into::into)?);
        Ok(self)
    }

    /// Returns true if the event meets every condition.
    #[must_use]
    pub fn matches(&self, event: &RecordedEvent) -> bool {
        self.matches_event(&event.stream, &event.event_type, &event.tags)
    }

    /// Returns true if an event of this stream and type, with these tags, meets every condition.
    #[must_use]
    pub fn matches_event(&self, stream: &StreamId, event_type: &EventType, tags: &Tags) -> bool {
        (self.types.is_empty() || self.types.contains(event_type))
            && self.matches_stream(stream)
            && self.tags.iter().all(|tag| tags.contains(tag))
    }

    /// Returns true if events of this stream can meet the conditions.
    #[must_use]
    pub fn matches_stream(&self, stream: &StreamId) -> bool {
        (self.stream_prefixes.is_empty()
            || self
                .stream_prefixes
                .iter()
                .any(|prefix| stream.as_str().starts_with(prefix.as_str())))
            && (self.categories.is_empty()
                || self.categories.iter().any(|c| c == stream.category()))
    }

    /// Returns true if the query sets no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
            && self.tags.is_empty()
            && self.stream_prefixes.is_empty()
            && self.categories.is_empty()
    }
}

/// Selection of events. An event passes if it matches any of the queries; without queries every event passes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Queries, at most 100, each with at most 100 values in each of its lists.
    pub any_of: Vec<Query>,
}

impl Filter {
    /// The filter that every event passes.
    pub const ALL: Filter = Filter { any_of: Vec::new() };

    /// Makes the filter of streams of a category: the text before the first `-` of their names, or the whole name.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::{Filter, Query};
    /// # fn main() -> gesta_core::Result<()> {
    /// let carts = Filter::category("cart");
    /// let books_added = Filter::from(Query::category("cart").or_event_type("item-added")?.and_tag("book")?);
    /// let either = Filter::any_of([Query::category("cart"), Query::tag("book")?]);
    /// # assert!(!carts.is_all() && !books_added.is_all() && either.any_of.len() == 2);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn category(category: impl Into<String>) -> Self {
        Query::category(category).into()
    }

    /// Makes the filter of streams whose names begin with this text.
    #[must_use]
    pub fn stream_prefix(prefix: impl Into<String>) -> Self {
        Query::stream_prefix(prefix).into()
    }

    /// Makes the filter of events of a type.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no type.
    pub fn event_type(event_type: impl TryInto<EventType, Error: Into<Error>>) -> Result<Self> {
        Query::event_type(event_type).map(Into::into)
    }

    /// Makes the filter of events with a tag.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no tag.
    pub fn tag(tag: impl TryInto<Tag, Error: Into<Error>>) -> Result<Self> {
        Query::tag(tag).map(Into::into)
    }

    /// Makes the filter of events that match any of the queries. Without queries every event passes.
    #[must_use]
    pub fn any_of(queries: impl IntoIterator<Item = Query>) -> Self {
        Self {
            any_of: queries.into_iter().collect(),
        }
    }

    /// Makes a filter of one query.
    #[must_use]
    pub fn query(query: Query) -> Self {
        if query.is_empty() {
            Self::ALL
        } else {
            Self {
                any_of: vec![query],
            }
        }
    }

    /// Returns true if every event passes.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.any_of.is_empty() || self.any_of.iter().any(Query::is_empty)
    }

    /// Returns true if only events of system streams can pass: those of streams whose names begin with `$`.
    #[must_use]
    pub fn asks_for_system_streams(&self) -> bool {
        let asks = |query: &Query| {
            let mut prefixes = query.stream_prefixes.iter();
            !query.stream_prefixes.is_empty() && prefixes.all(|prefix| prefix.starts_with('$'))
        };
        !self.any_of.is_empty() && self.any_of.iter().all(asks)
    }

    /// Returns the largest number of positions that one page looks at. A filter that asks for one tag in each query is
    /// answered from an index, which holds only events that pass, and has no bound (`u64::MAX`). Any other filter may
    /// look at many events that do not pass.
    #[must_use]
    pub fn scan_max(&self) -> u64 {
        let by_tag_alone = |query: &Query| {
            let Query {
                types,
                tags,
                stream_prefixes,
                categories,
            } = query;
            tags.len() == 1
                && types.is_empty()
                && stream_prefixes.is_empty()
                && categories.is_empty()
        };
        if !self.is_all() && self.any_of.iter().all(by_tag_alone) {
            u64::MAX
        } else {
            PAGE_SCAN_MAX
        }
    }

    /// Returns true if the event passes.
    #[must_use]
    pub fn matches(&self, event: &RecordedEvent) -> bool {
        self.any_of.is_empty() || self.any_of.iter().any(|query| query.matches(event))
    }

    /// Returns true if an event of this stream and type, with these tags, passes.
    #[must_use]
    pub fn matches_event(&self, stream: &StreamId, event_type: &EventType, tags: &Tags) -> bool {
        let mut queries = self.any_of.iter();
        self.any_of.is_empty() || queries.any(|query| query.matches_event(stream, event_type, tags))
    }

    /// Checks the sizes of the list of queries and of all lists in them.
    ///
    /// # Errors
    /// `InvalidArgument` if a list holds more than 100 values.
    pub fn validate(&self) -> Result<()> {
        let lists = self.any_of.iter().flat_map(|q| {
            [
                ("type", q.types.len()),
                ("tag", q.tags.len()),
                ("stream_prefix", q.stream_prefixes.len()),
                ("category", q.categories.len()),
            ]
        });
        for (field, len) in std::iter::once(("filter", self.any_of.len())).chain(lists) {
            if len > FILTER_VALUES_MAX {
                return Err(Error::invalid(
                    field,
                    format!("must have at most {FILTER_VALUES_MAX} values, found {len}"),
                ));
            }
        }
        Ok(())
    }
}

impl From<Query> for Filter {
    fn from(query: Query) -> Self {
        Self::query(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_virtual_streams_alone_is_known() {
        let of = |prefixes: &[&str]| Query {
            stream_prefixes: prefixes.iter().map(|&prefix| prefix.to_owned()).collect(),
            ..Query::default()
        };
        assert!(Filter::query(of(&["$ce-", "$et-x"])).is_of_virtual_streams());
        let both = Filter {
            any_of: vec![of(&["$ce-"]), of(&["cart-"])],
        };
        let mixed = Filter::query(of(&["$ce-", "cart-"]));
        for other in [mixed, Filter::query(of(&["$ce"])), both, Filter::ALL] {
            assert!(!other.is_of_virtual_streams());
        }
    }

    #[test]
    fn a_filter_of_system_streams_alone_is_known() {
        let of = |prefixes: &[&str]| Query {
            stream_prefixes: prefixes.iter().map(|&prefix| prefix.to_owned()).collect(),
            ..Query::default()
        };
        assert!(Filter::query(of(&["$", "$timers-"])).asks_for_system_streams());
        let both = Filter::any_of([of(&["$"]), of(&["cart-"])]);
        let categories = Filter::category("$timers");
        for other in [Filter::query(of(&["$", ""])), both, categories, Filter::ALL] {
            assert!(!other.asks_for_system_streams(), "{other:?}");
        }
    }

    #[test]
    fn only_what_a_tag_alone_finds_is_read_without_bound() {
        let tag = |text: &str| Tag::new(text).expect("valid");
        let by_tag = |tags: &[&str]| Query {
            tags: tags.iter().map(|text| tag(text)).collect(),
            ..Query::default()
        };
        let any_of = |any_of: &[Query]| Filter {
            any_of: any_of.to_vec(),
        };
        let typed = Query {
            types: vec![EventType::new("T").expect("valid")],
            ..by_tag(&["a"])
        };
        let in_category = Query {
            categories: vec!["cart".to_owned()],
            ..by_tag(&["a"])
        };
        assert_eq!(any_of(&[by_tag(&["a"])]).scan_max(), u64::MAX);
        assert_eq!(
            any_of(&[by_tag(&["a"]), by_tag(&["b"])]).scan_max(),
            u64::MAX
        );
        for bounded in [
            Filter::ALL,
            any_of(&[by_tag(&["a", "b"])]),
            any_of(&[typed]),
            any_of(&[by_tag(&["a"]), in_category]),
            any_of(&[by_tag(&["a"]), Query::default()]),
        ] {
            assert_eq!(bounded.scan_max(), PAGE_SCAN_MAX, "{bounded:?}");
        }
    }
}
