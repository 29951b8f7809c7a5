//! Seeks the first event of a part of the log that passes the filter of a condition.
//!
//! A query with tags is answered from the index of tags, by its first tag; the events that carry it are compared here.
//! A query without a tag has no index: the part is looked through, and so it must be short.

use gesta_core::backend::{Backend, LogSlice};
use gesta_core::limits::PAGE_SCAN_MAX;
use gesta_core::{Direction, Error, Filter, LogId, Position, Query, RecordedEvent, Result};

use crate::sequencer::job::MatchSearch;

/// The greatest number of events that are read at once.
const PAGE: usize = 256;
/// The greatest number of positions that are looked through for a query without a tag.
const UNTAGGED_MAX: u64 = 2 * PAGE_SCAN_MAX;
/// The greatest number of events with the first tag of a query that are compared with the query.
const CANDIDATES_MAX: usize = 100_000;

/// Returns the position of the first event that passes.
///
/// # Errors
/// `InvalidArgument` if a query without a tag is about too long a part of the log; the errors of the backend.
pub(super) async fn first_match(
    backend: &dyn Backend,
    log: LogId,
    search: &MatchSearch,
) -> Result<Option<Position>> {
    let (tagged, untagged): (Vec<&Query>, Vec<&Query>) = search
        .filter
        .any_of
        .iter()
        .partition(|query| !query.tags.is_empty());
    let length = search.until.0.saturating_sub(search.after.0);
    if !untagged.is_empty() && length > UNTAGGED_MAX {
        let rule = format!(
            "must name a tag in each query, or begin at most {UNTAGGED_MAX} positions before the end of the log: \
             without a tag all {length} events after the checkpoint would have to be looked through"
        );
        return Err(Error::invalid("conditions.no_match", rule));
    }
    let mut first: Option<Position> = None;
    for query in tagged {
        let indexed = Query {
            tags: query.tags.iter().take(1).cloned().collect(),
            ..Query::default()
        };
        let until = before(first, search.until);
        let found = seek(
            backend,
            log,
            Filter::query(indexed),
            search.after,
            until,
            |event| query.matches(event),
        );
        first = found.await?.or(first);
    }
    if !untagged.is_empty() {
        let any_of = Filter {
            any_of: untagged.into_iter().cloned().collect(),
        };
        let mut after = search.after;
        let until = before(first, search.until);
        while after < until {
            let to = until.min(after.plus(PAGE_SCAN_MAX));
            let found = seek(backend, log, any_of.clone(), after, to, |_| true).await?;
            if found.is_some() {
                return Ok(found);
            }
            after = to;
        }
    }
    Ok(first)
}

/// Returns the last position that is still to be looked at, if an event was found already.
fn before(first: Option<Position>, until: Position) -> Position {
    first.map_or(until, |first| Position(first.0.saturating_sub(1)))
}

/// Reads the events that pass `filter` in the order of the log, until one passes `is_it` as well.
async fn seek(
    backend: &dyn Backend,
    log: LogId,
    filter: Filter,
    mut after: Position,
    to: Position,
    is_it: impl Fn(&RecordedEvent) -> bool,
) -> Result<Option<Position>> {
    let mut looked_at = 0;
    while after < to {
        let slice = LogSlice {
            log,
            after,
            to,
            direction: Direction::Forwards,
            filter: filter.clone(),
            limit: PAGE,
        };
        let rows = backend.read_log(slice).await?;
        let mut events = rows.events.iter();
        let found = events.find(|event| !event.stream.is_system() && is_it(event));
        if let Some(event) = found {
            return Ok(Some(event.position));
        }
        match rows.events.last() {
            Some(last) if !rows.complete => {
                after = last.position;
                looked_at += rows.events.len();
                if looked_at > CANDIDATES_MAX {
                    let rule = format!(
                        "must begin later, or name a rarer tag first in each query: more than {CANDIDATES_MAX} events \
                         carry the first one"
                    );
                    return Err(Error::invalid("conditions.no_match", rule));
                }
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gesta_core::{ErrorKind, EventData, EventType, Tag, Tags};
    use gesta_kit::faulty::{Faulty, FaultyBackend, World};

    use super::*;

    fn event(event_type: &str, tags: &[&str]) -> EventData {
        let tags = tags.iter().map(|tag| Tag::new(*tag).expect("valid"));
        EventData {
            tags: Tags::new(tags.collect()).expect("valid"),
            ..EventData::json(EventType::new(event_type).expect("valid"), "1")
        }
    }

    fn query(types: &[&str], tags: &[&str]) -> Query {
        let of_type = |text: &&str| EventType::new(*text).expect("valid");
        Query {
            types: types.iter().map(of_type).collect(),
            tags: tags
                .iter()
                .map(|tag| Tag::new(*tag).expect("valid"))
                .collect(),
            ..Query::default()
        }
    }

    fn append(world: &Arc<World>, stream: &str, events: Vec<EventData>) {
        world.foreign_append(stream, events).expect("stored");
    }

    /// Searches after a position, up to another one.
    async fn first(
        process: &Faulty<Arc<dyn Backend>>,
        any_of: Vec<Query>,
        (after, until): (u64, u64),
    ) -> Result<Option<u64>> {
        let search = MatchSearch {
            filter: Arc::new(Filter { any_of }),
            after: Position(after),
            until: Position(until),
        };
        let backend: &FaultyBackend = process.backend();
        let found = first_match(backend, LogId(0), &search).await?;
        Ok(found.map(|position| position.0))
    }

    fn process(world: &Arc<World>) -> Faulty<Arc<dyn Backend>> {
        Faulty::start(world, |backend| backend)
    }

    /// Returns the rule that a search breaks.
    fn rule(answer: Result<Option<u64>>) -> String {
        let error = answer.expect_err("refused");
        let ErrorKind::InvalidArgument { field, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(field, "conditions.no_match");
        error.to_string()
    }

    /// Goal: a match behind many events with the first tag is found, however the database divides them into pages; the
    /// part that is searched begins after its first position and ends with its last one.
    #[tokio::test]
    async fn a_match_is_found_behind_several_pages() {
        let world = World::new(1);
        let process = process(&world);
        let number = |number: u64| match number {
            599 => event("e", &["a", "b"]),
            _ => event("e", &["a"]),
        };
        append(&world, "s-1", (1..=600).map(number).collect());
        append(&world, "$system", vec![event("e", &["a", "c"])]);
        let both = || vec![query(&[], &["a", "b"])];
        for bytes_max in [usize::MAX, 20_000, 1] {
            process.set_page_bytes_max(bytes_max);
            for (part, expected) in [
                ((0, 601), Some(599)),
                ((0, 599), Some(599)),
                ((598, 599), Some(599)),
                ((0, 598), None),
                ((599, 601), None),
                ((599, 599), None),
            ] {
                let found = first(&process, both(), part).await.expect("searched");
                assert_eq!(found, expected, "{part:?} {bytes_max}");
            }
        }
        for (types, tags) in [(&[][..], &["a", "c"][..]), (&["f"], &["a"]), (&["f"], &[])] {
            let found = first(&process, vec![query(types, tags)], (0, 601)).await;
            assert_eq!(found.expect("searched"), None, "{types:?} {tags:?}");
        }
    }

    /// Goal: of several queries, with tags and without, the first match of all is found, whichever comes first.
    #[tokio::test]
    async fn of_several_queries_the_first_match_counts() {
        let world = World::new(1);
        let process = process(&world);
        let events = ["p", "q", "r", "s", "t"].map(|name| event(name, &[name]));
        append(&world, "s-1", events.into());
        let tagged = |name: &str| query(&[], &[name]);
        let typed = |name: &str| query(&[name], &[]);
        for (queries, expected) in [
            (vec![tagged("q"), tagged("r")], Some(2)),
            (vec![tagged("r"), tagged("q")], Some(2)),
            (vec![tagged("q"), tagged("q")], Some(2)),
            (vec![tagged("r"), typed("q")], Some(2)),
            (vec![typed("r"), tagged("q")], Some(2)),
            (vec![tagged("r"), typed("s")], Some(3)),
            (vec![typed("t"), typed("s")], Some(4)),
            (vec![tagged("p"), typed("q")], Some(2)),
            (vec![tagged("none"), typed("s"), tagged("t")], Some(4)),
        ] {
            let found = first(&process, queries.clone(), (1, 5)).await;
            assert_eq!(found.expect("searched"), expected, "{queries:?}");
        }
    }

    /// Goal: a query without a tag looks through so many positions and no more; what it seeks is found in each part of
    /// them, at their borders too. A tag that too many events carry is refused, and the rule says what helps.
    #[tokio::test]
    async fn a_search_is_bounded() {
        const MORE: u64 = 300;
        let world = World::new(1);
        let process = process(&world);
        let all = UNTAGGED_MAX + MORE;
        let seldom = [1, PAGE_SCAN_MAX, PAGE_SCAN_MAX + 1, UNTAGGED_MAX].map(|at| MORE + at);
        for thousand in 0..all.div_ceil(1_000) {
            let begin = thousand * 1_000;
            let events = (begin + 1..=all.min(begin + 1_000)).map(|position| {
                let at = seldom.iter().position(|at| *at == position);
                let name = at.map_or("often".to_owned(), |at| format!("seldom-{at}"));
                event(&name, &["a"])
            });
            append(&world, "s-1", events.collect());
        }
        assert_eq!(world.end(LogId(0)).position, Position(all));
        for (number, position) in seldom.into_iter().enumerate() {
            let of_type = vec![query(&[&format!("seldom-{number}")], &[])];
            let found = first(&process, of_type, (MORE, all)).await;
            assert_eq!(found.expect("searched"), Some(position), "{number}");
        }
        let never = || vec![query(&["never"], &[])];
        let found = first(&process, never(), (MORE, all)).await;
        assert_eq!(found.expect("searched"), None);
        let too_long = first(&process, never(), (MORE - 1, all)).await;
        assert!(rule(too_long).contains("100001 events"));
        let tagged = || vec![query(&[], &["a", "b"])];
        let candidates = u64::try_from(CANDIDATES_MAX).expect("small");
        let found = first(&process, tagged(), (all - candidates, all)).await;
        assert_eq!(found.expect("searched"), None);
        let too_many = first(&process, tagged(), (0, all)).await;
        assert!(rule(too_many).contains("rarer tag"));
    }
}
