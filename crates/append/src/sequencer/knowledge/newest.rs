//! The newest events of the log, as far as conditions on all events need them: what has happened since a decision was
//! made is in memory, so that such a condition costs no look at the database.
//!
//! Invariants: while events are kept, every event after [`known_after`](NewestEvents::known_after) is here, committed
//! or decided, but for those of system streams, which no condition is about; nothing is kept as long as nobody asks;
//! the memory is bounded in events and bytes, but what is not committed yet is never dropped; the lists of tags and
//! types hold exactly the events that are here.
//! Not here: whether an event was scavenged since, which nobody tells the owner of the log; events that other processes
//! have appended. Their tags are not read when catching up, so then everything
//! kept is dropped, and the database is asked.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use gesta_core::backend::Row;
use gesta_core::{EventType, Filter, Position, Query, StreamId, Tag, Tags};

/// The number of events after which nothing is kept any more, if nobody has asked meanwhile.
const UNASKED_MAX: u64 = 100_000;
/// The greatest number of events that are compared before it is looked whether that was enough work for one turn.
const WINDOW: usize = 1_024;
/// About the memory of an entry of a list of positions, and of the list if it has no other entry, in bytes.
const ENTRY_BYTES: usize = 96;

/// An event, as far as a filter looks at it.
#[derive(Debug)]
struct Seen {
    position: Position,
    stream: StreamId,
    event_type: EventType,
    tags: Tags,
}

impl Seen {
    fn bytes(&self) -> usize {
        let tags = self.tags.as_slice().iter();
        let texts = tags.map(|tag| tag.as_str().len() + size_of::<Tag>() + ENTRY_BYTES);
        size_of::<Self>() + ENTRY_BYTES + self.stream.as_str().len() + texts.sum::<usize>()
    }
}

/// The bounds of the newest events of one log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The greatest number of events that are kept.
    pub(crate) events_max: usize,
    /// The most memory that they take, in bytes.
    pub(crate) bytes_max: usize,
}

/// The answer of the newest events to a filter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    /// This event passes. An earlier one may pass as well.
    Found(Position),
    /// No event passes that is here.
    Nothing,
    /// No event passes up to this position. The others were not compared, because that was enough work for one turn.
    Unfinished(Position),
}

/// The newest events of the log.
#[derive(Debug)]
pub(crate) struct NewestEvents {
    bounds: Bounds,
    is_kept: bool,
    /// Every event after this position is here.
    after: Position,
    events: VecDeque<Seen>,
    bytes: usize,
    with: Places<Tag>,
    of: Places<EventType>,
    /// The number of events since somebody has asked.
    unasked: u64,
    /// Counts how often all was forgotten that is known of the log.
    histories: u64,
    /// Counts how often events were dropped that another one may have replaced.
    revisions: u64,
}

impl NewestEvents {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            is_kept: false,
            after: Position::START,
            events: VecDeque::new(),
            bytes: 0,
            with: Places::default(),
            of: Places::default(),
            unasked: 0,
            histories: 0,
            revisions: 0,
        }
    }

    /// Returns the number of the history to which all answers belong. What was learnt of another one does not count.
    pub(crate) fn history(&self) -> u64 {
        self.histories
    }

    /// Returns a number that changes whenever events are dropped that others may replace. What was compared before is
    /// to be compared again.
    pub(crate) fn revision(&self) -> u64 {
        self.revisions
    }

    /// Begins to keep events, unless they are kept. `committed` is the end of what is committed, and `open` are the
    /// rows after it.
    pub(crate) fn keep<'a>(&mut self, committed: Position, open: impl Iterator<Item = &'a Row>) {
        self.unasked = 0;
        if self.is_kept {
            return;
        }
        self.is_kept = true;
        self.begin_after(committed);
        for row in open {
            self.see(row, committed);
            // Somebody asks.
            self.unasked = 0;
        }
    }

    /// Returns the position after which every event is known.
    pub(crate) fn known_after(&self) -> Position {
        self.after
    }

    /// Takes a row that was decided. `committed` is the end of what is committed.
    pub(crate) fn see(&mut self, row: &Row, committed: Position) {
        if !self.is_kept {
            return;
        }
        self.unasked += 1;
        if self.unasked > UNASKED_MAX {
            self.is_kept = false;
            self.begin_after(Position::START);
            return;
        }
        if row.stream.is_system() {
            return;
        }
        let seen = Seen {
            position: row.position,
            stream: row.stream.clone(),
            event_type: row.event_type.clone(),
            tags: row.tags.clone(),
        };
        for tag in seen.tags.as_slice() {
            self.with.push(tag, seen.position);
        }
        self.of.push(&seen.event_type, seen.position);
        self.bytes += seen.bytes();
        self.events.push_back(seen);
        self.shrink(committed);
    }

    /// Drops what was undone: everything after `committed`.
    pub(crate) fn undo(&mut self, committed: Position) {
        while let Some(last) = self.events.pop_back_if(|last| last.position > committed) {
            self.revisions += 1;
            self.dropped(&last);
        }
    }

    /// Notes that another process has appended up to this position.
    pub(crate) fn others_appended(&mut self, position: Position) {
        if self.is_kept {
            self.begin_after(position);
        }
    }

    /// Notes that nothing is known of the log any more but its end.
    pub(crate) fn forget(&mut self, end: Position) {
        self.histories += 1;
        self.begin_after(end);
    }

    /// Returns the stream of an event that is here.
    pub(crate) fn stream_at(&self, position: Position) -> Option<&StreamId> {
        let place = self
            .events
            .binary_search_by_key(&position, |seen| seen.position);
        place
            .ok()
            .and_then(|place| self.events.get(place))
            .map(|seen| &seen.stream)
    }

    /// Seeks an event after a position that passes the filter, of those that are here. `work` is how many values may
    /// still be compared in this turn.
    ///
    /// Only the events are compared that are in the shortest of the lists that a query has: at worst all of them, if
    /// every event carries every tag that is asked for, but never together.
    pub(crate) fn seek(&self, filter: &Filter, after: Position, work: &mut usize) -> Sought {
        let queries = filter.any_of.iter();
        let queries: Vec<_> = queries.map(|query| Candidates::of(self, query)).collect();
        let all_weights = queries.iter().map(|one| one.weight).sum::<usize>().max(1);
        let mut done = after;
        loop {
            let next = queries.iter().filter_map(|one| one.next(self, done)).min();
            let Some(next) = next else {
                return Sought::Nothing;
            };
            if *work == 0 {
                return Sought::Unfinished(done);
            }
            *work = work.saturating_sub(queries.len());
            let begin = self.events.partition_point(|seen| seen.position < next);
            let window = (*work / all_weights).clamp(1, WINDOW);
            let last = (begin + window).min(self.events.len()) - 1;
            let until = self.events[last].position;
            for query in &queries {
                if let Some(position) = query.first(self, done, until, work) {
                    return Sought::Found(position);
                }
            }
            done = until;
        }
    }

    fn begin_after(&mut self, position: Position) {
        self.after = position;
        self.events = VecDeque::new();
        self.bytes = 0;
        self.revisions += 1;
        (self.with, self.of) = (Places::default(), Places::default());
    }

    fn shrink(&mut self, committed: Position) {
        while (self.events.len() > self.bounds.events_max || self.bytes > self.bounds.bytes_max)
            && let Some(first) = self
                .events
                .pop_front_if(|first| first.position <= committed)
        {
            self.after = first.position;
            self.dropped(&first);
        }
    }

    /// Notes that the first or the last event was dropped.
    fn dropped(&mut self, seen: &Seen) {
        self.bytes -= seen.bytes();
        for tag in seen.tags.as_slice() {
            self.with.remove(tag, seen.position);
        }
        self.of.remove(&seen.event_type, seen.position);
    }
}

/// The positions of the events with each tag, or of each type, in their order.
#[derive(Debug)]
struct Places<K>(HashMap<K, VecDeque<Position>>);

impl<K> Default for Places<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Clone> Places<K> {
    fn push(&mut self, key: &K, position: Position) {
        match self.0.get_mut(key) {
            Some(list) if list.back() == Some(&position) => {}
            Some(list) => list.push_back(position),
            None => {
                self.0.insert(key.clone(), VecDeque::from([position]));
            }
        }
    }

    /// Removes the first or the last position of a key.
    fn remove(&mut self, key: &K, position: Position) {
        let Some(list) = self.0.get_mut(key) else {
            return;
        };
        if list.front() == Some(&position) {
            list.pop_front();
        } else if list.back() == Some(&position) {
            list.pop_back();
        }
        if list.is_empty() {
            self.0.remove(key);
        } else if list.len() < list.capacity() / 4 {
            // What was long once does not hold the memory of that time.
            list.shrink_to(2 * list.len());
        }
    }

    fn get(&self, key: &K) -> Option<&VecDeque<Position>> {
        self.0.get(key)
    }
}

/// The events that may match a query.
#[derive(Debug)]
struct Candidates<'a> {
    query: &'a Query,
    /// The lists of their positions; `None` if every event may match.
    lists: Option<Vec<&'a VecDeque<Position>>>,
    /// What it costs to compare one event.
    weight: usize,
}

impl<'a> Candidates<'a> {
    fn of(newest: &'a NewestEvents, query: &'a Query) -> Self {
        let tags = query.tags.iter();
        let tags: Option<Vec<_>> = tags.map(|tag| newest.with.get(tag)).collect();
        let types = query.types.iter().filter_map(|of| newest.of.get(of));
        let types: Vec<_> = types.collect();
        let lists = match tags {
            // No event carries one of the tags.
            None => Some(Vec::new()),
            Some(tags) => {
                let rarest = tags.into_iter().min_by_key(|list| list.len());
                let of_types = types.iter().map(|list| list.len()).sum::<usize>();
                match (rarest, query.types.is_empty()) {
                    (None, true) => None,
                    (Some(rarest), false) if of_types < rarest.len() => Some(types),
                    (Some(rarest), _) => Some(vec![rarest]),
                    (None, false) => Some(types),
                }
            }
        };
        let texts = query.stream_prefixes.len() + query.categories.len();
        Self {
            query,
            lists,
            weight: 1 + query.types.len() + query.tags.len() + texts,
        }
    }

    /// Returns the position of the next candidate after a position.
    fn next(&self, newest: &NewestEvents, after: Position) -> Option<Position> {
        match &self.lists {
            None => {
                let place = newest.events.partition_point(|seen| seen.position <= after);
                newest.events.get(place).map(|seen| seen.position)
            }
            Some(lists) => {
                let next = lists.iter().filter_map(|list| {
                    let place = list.partition_point(|position| *position <= after);
                    list.get(place).copied()
                });
                next.min()
            }
        }
    }

    /// Returns the first event after a position, up to another one, that matches.
    fn first(
        &self,
        newest: &NewestEvents,
        after: Position,
        until: Position,
        work: &mut usize,
    ) -> Option<Position> {
        let mut matches = |seen: &Seen| {
            *work = work.saturating_sub(self.weight);
            self.query
                .matches_event(&seen.stream, &seen.event_type, &seen.tags)
        };
        let begin = |position| {
            newest
                .events
                .partition_point(|seen| seen.position <= position)
        };
        match &self.lists {
            None => {
                let mut events = newest.events.range(begin(after)..begin(until));
                events.find(|seen| matches(seen)).map(|seen| seen.position)
            }
            Some(lists) => lists.iter().find_map(|list| {
                let from = list.partition_point(|position| *position <= after);
                let to = list.partition_point(|position| *position <= until);
                let mut positions = list.range(from..to);
                let at = |position: &Position| {
                    let place = newest
                        .events
                        .binary_search_by_key(position, |seen| seen.position);
                    place.ok().and_then(|place| newest.events.get(place))
                };
                positions
                    .find(|position| at(position).is_some_and(&mut matches))
                    .copied()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use gesta_core::backend::RowId;
    use gesta_core::{ContentType, EventId, Query, Revision, Timestamp};

    use super::*;

    fn row(position: u64, event_type: &str, tags: &[&str]) -> Row {
        let tags = tags.iter().map(|tag| Tag::new(*tag).expect("valid"));
        Row {
            position: Position(position),
            stream: StreamId::new("s").expect("valid"),
            stream_row: RowId(1),
            revision: Revision(position),
            id: EventId::random(),
            event_type: EventType::new(event_type).expect("valid"),
            type_row: RowId(1),
            created: Timestamp(0),
            content_type: ContentType::Json,
            data: Bytes::new(),
            packed: None,
            metadata: Bytes::new(),
            tags: Tags::new(tags.collect()).expect("valid"),
        }
    }

    fn filter(types: &[&str], tags: &[&str]) -> Filter {
        let of = |text: &&str| EventType::new(*text).expect("valid");
        Filter::query(Query {
            types: types.iter().map(of).collect(),
            tags: tags
                .iter()
                .map(|tag| Tag::new(*tag).expect("valid"))
                .collect(),
            ..Query::default()
        })
    }

    const MANY: Bounds = Bounds {
        events_max: 1_000,
        bytes_max: 1024 * 1024,
    };

    fn kept(bounds: Bounds) -> NewestEvents {
        let mut newest = NewestEvents::new(bounds);
        newest.keep(Position(0), std::iter::empty());
        newest
    }

    /// Goal: what passes a filter is found after a position, and nothing that was undone is.
    #[test]
    fn the_first_match_is_found() {
        let mut newest = NewestEvents::new(MANY);
        let open = [row(6, "T", &["a"]), row(7, "U", &["a", "b"])];
        newest.keep(Position(5), open.iter());
        newest.see(&row(8, "T", &["b"]), Position(5));
        let first = |newest: &NewestEvents, filter: &Filter, after| match newest.seek(
            filter,
            Position(after),
            &mut usize::MAX.clone(),
        ) {
            Sought::Found(position) => Some(position.0),
            other => {
                assert_eq!(other, Sought::Nothing);
                None
            }
        };
        for (types, tags, after, expected) in [
            (&[][..], &["a"][..], 5, Some(6)),
            (&[], &["a"], 6, Some(7)),
            (&[], &["a"], 7, None),
            (&["T"], &["b"], 5, Some(8)),
            (&["U"], &["b"], 5, Some(7)),
            (&["T"], &["a", "b"], 5, None),
            (&["V", "U"], &[], 5, Some(7)),
            (&["V"], &[], 5, None),
        ] {
            let filter = filter(types, tags);
            assert_eq!(
                first(&newest, &filter, after),
                expected,
                "{filter:?} {after}"
            );
        }
        newest.undo(Position(7));
        assert_eq!(first(&newest, &filter(&["T"], &["b"]), 5), None);
        newest.see(&row(8, "V", &["c"]), Position(7));
        assert_eq!(first(&newest, &filter(&[], &["c"]), 7), Some(8));
        assert_eq!(newest.known_after(), Position(5));
        newest.others_appended(Position(9));
        assert_eq!(newest.known_after(), Position(9));
    }

    /// Goal: the memory is bounded in events and in bytes, also that of the lists, and says from where on it knows
    /// everything; what is not committed stays.
    #[test]
    fn the_memory_is_bounded() {
        let bounds = Bounds {
            events_max: 100,
            ..MANY
        };
        let mut newest = kept(bounds);
        for position in 1..=200 {
            newest.see(&row(position, "T", &[&position.to_string()]), Position(50));
        }
        assert_eq!(newest.known_after(), Position(50), "the others are open");
        newest.see(&row(201, "T", &[]), Position(200));
        assert_eq!(newest.known_after(), Position(101));
        assert_eq!((newest.events.len(), newest.with.0.len()), (100, 99));
        assert_eq!(newest.of.0.values().map(VecDeque::len).sum::<usize>(), 100);
        let bounds = Bounds {
            bytes_max: 100 * kept_bytes(),
            ..MANY
        };
        let mut newest = kept(bounds);
        for position in 1..=1_000 {
            newest.see(&row(position, "T", &["of all"]), Position(position));
            assert!(newest.bytes <= bounds.bytes_max, "{}", newest.bytes);
        }
        assert_eq!(newest.known_after(), Position(900));
        newest.undo(Position(901));
        assert_eq!(newest.with.0.values().map(VecDeque::len).sum::<usize>(), 1);
        assert!(newest.with.0.values().all(|list| list.capacity() < 16));
        assert_eq!(newest.bytes, kept_bytes());
        for position in 1_001..=1_000 + UNASKED_MAX {
            newest.see(&row(position, "T", &[]), Position(position));
        }
        assert!(!newest.is_kept && newest.events.is_empty(), "nobody asks");
    }

    fn kept_bytes() -> usize {
        let mut one = kept(MANY);
        one.see(&row(1, "T", &["of all"]), Position(1));
        one.bytes
    }

    /// Goal: a turn ends after so much work, wherever it is, and the next one goes on; a rare tag costs next to
    /// nothing, in whatever order a query names its tags.
    #[test]
    fn the_work_of_a_turn_is_bounded() {
        let bounds = Bounds {
            events_max: 20_000,
            bytes_max: usize::MAX,
        };
        let mut newest = kept(bounds);
        for position in 1..=20_000 {
            let tag = ["even", "odd"][usize::from(position % 2 == 1)];
            let rare = if position == 19_999 { "rare" } else { "x" };
            newest.see(&row(position, "T", &[tag, rare]), Position(position));
        }
        // Every event is a candidate of both, and none matches.
        let query = |tags: [&str; 2]| filter(&["T"], &tags).any_of;
        let sixteen = (0..16).flat_map(|_| query(["even", "odd"]));
        let costly = Filter {
            any_of: sixteen.collect(),
        };
        let (mut after, mut turns) = (Position(0), 0);
        loop {
            let mut work = 50_000;
            let sought = newest.seek(&costly, after, &mut work);
            turns += 1;
            match sought {
                Sought::Unfinished(until) => {
                    assert!(
                        until > after && until.0 - after.0 <= 2 * WINDOW as u64,
                        "{until}"
                    );
                    after = until;
                }
                other => break assert_eq!(other, Sought::Nothing),
            }
        }
        assert!((10..100).contains(&turns), "{turns}");
        assert_eq!(
            newest.seek(&costly, Position(0), &mut 0),
            Sought::Unfinished(Position(0))
        );
        let mut least = 1_000;
        let one_event = newest.seek(&costly, Position(0), &mut least);
        assert!(matches!(one_event, Sought::Unfinished(until) if until > Position(0)));
        for tags in [["odd", "rare"], ["rare", "odd"]] {
            let mut work = 50_000;
            let rare = filter(&["T"], &tags);
            let found = newest.seek(&rare, Position(0), &mut work);
            assert_eq!(found, Sought::Found(Position(19_999)));
            assert!(work > 49_000, "{work}");
        }
    }

    /// Goal: what was compared is compared again after something was undone, or others have appended.
    #[test]
    fn a_revision_is_what_answers_may_rest_on() {
        let mut newest = kept(MANY);
        newest.see(&row(1, "T", &["a"]), Position(0));
        let first = newest.revision();
        newest.see(&row(2, "T", &["a"]), Position(1));
        newest.undo(Position(2));
        assert_eq!(newest.revision(), first, "nothing was undone");
        newest.undo(Position(1));
        let second = newest.revision();
        newest.others_appended(Position(2));
        assert!(first < second && second < newest.revision());
    }
}
