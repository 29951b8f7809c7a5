//! The newest events of the log, as far as conditions on all events need them: what has happened since a decision was
//! made is in memory, so that such a condition costs no look at the database.
//!
//! Invariants: while events are kept, every event after [`known_after`](NewestEvents::known_after) is here, committed
//! or decided; nothing is kept as long as nobody asks; the memory is bounded in events and bytes, but what is not
//! committed yet is never dropped.
//! Not here: events that other processes have appended. Their tags are not read when catching up, so then everything
//! kept is dropped, and the database is asked.

use std::collections::{HashMap, VecDeque};

use gesta_core::backend::Row;
use gesta_core::{EventType, Filter, Position, StreamId, Tag, Tags};

/// The greatest number of events that are kept.
const EVENTS_MAX: usize = 20_000;
/// The most memory that they take, in bytes.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// The number of events after which nothing is kept any more, if nobody has asked meanwhile.
const UNASKED_MAX: u64 = 100_000;

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
        let texts = tags.map(|tag| tag.as_str().len() + size_of::<Tag>());
        size_of::<Self>() + self.stream.as_str().len() + texts.sum::<usize>()
    }
}

/// The newest events of the log.
#[derive(Debug, Default)]
pub(crate) struct NewestEvents {
    is_kept: bool,
    /// Every event after this position is here.
    after: Position,
    events: VecDeque<Seen>,
    bytes: usize,
    /// The last event with a tag, or of a type, that was seen; it may have been undone since.
    last_with: HashMap<Tag, Position>,
    last_of: HashMap<EventType, Position>,
    /// The numbers of tags and types at which those of older events are dropped.
    tags_max: usize,
    types_max: usize,
    /// The number of events since somebody has asked.
    unasked: u64,
    /// Counts how often all was forgotten that is known of the log.
    histories: u64,
}

impl NewestEvents {
    /// Returns the number of the history to which all answers belong. What was learnt of another one does not count.
    pub(crate) fn history(&self) -> u64 {
        self.histories
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
        let seen = Seen {
            position: row.position,
            stream: row.stream.clone(),
            event_type: row.event_type.clone(),
            tags: row.tags.clone(),
        };
        for tag in seen.tags.as_slice() {
            self.last_with.insert(tag.clone(), seen.position);
        }
        self.last_of.insert(seen.event_type.clone(), seen.position);
        self.bytes += seen.bytes();
        self.events.push_back(seen);
        self.shrink(committed);
    }

    /// Drops what was undone: everything after `committed`.
    pub(crate) fn undo(&mut self, committed: Position) {
        while let Some(last) = self.events.back()
            && last.position > committed
        {
            self.bytes -= last.bytes();
            self.events.pop_back();
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

    /// Returns the first event after a position that passes the filter, of those that are here.
    pub(crate) fn first_match(&self, filter: &Filter, after: Position) -> Option<Position> {
        if !self.may_match(filter, after) {
            return None;
        }
        let begin = self.events.partition_point(|seen| seen.position <= after);
        let mut events = self.events.range(begin..);
        let first = events.find(|seen| {
            !seen.stream.is_system()
                && filter.matches_event(&seen.stream, &seen.event_type, &seen.tags)
        });
        first.map(|seen| seen.position)
    }

    /// Returns false if no event after a position can pass: none has all the tags, or any of the types, of a query.
    fn may_match(&self, filter: &Filter, after: Position) -> bool {
        let is_after = |last: Option<&Position>| last.is_some_and(|last| *last > after);
        filter.any_of.iter().any(|query| {
            let mut types = query.types.iter();
            let has_type = query.types.is_empty() || types.any(|of| is_after(self.last_of.get(of)));
            let mut tags = query.tags.iter();
            has_type && tags.all(|tag| is_after(self.last_with.get(tag)))
        })
    }

    fn begin_after(&mut self, position: Position) {
        self.after = position;
        self.events = VecDeque::new();
        self.bytes = 0;
        self.last_with = HashMap::new();
        self.last_of = HashMap::new();
        (self.tags_max, self.types_max) = (0, 0);
    }

    fn shrink(&mut self, committed: Position) {
        while (self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX)
            && let Some(first) = self.events.front()
            && first.position <= committed
        {
            self.bytes -= first.bytes();
            self.after = first.position;
            self.events.pop_front();
        }
        forget_older(&mut self.last_with, &mut self.tags_max, self.after);
        forget_older(&mut self.last_of, &mut self.types_max, self.after);
    }
}

/// Drops what was last seen before the events that are kept, once there is twice as much as was left the last time: so
/// each entry is looked at a few times and not at every event.
fn forget_older<K>(last: &mut HashMap<K, Position>, max: &mut usize, after: Position) {
    if last.len() > (*max).max(2 * EVENTS_MAX) {
        last.retain(|_, position| *position > after);
        *max = 2 * last.len();
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

    /// Goal: what passes a filter is found at its first place after a position, and nothing that was undone is.
    #[test]
    fn the_first_match_is_found() {
        let mut newest = NewestEvents::default();
        let open = [row(6, "T", &["a"]), row(7, "U", &["a", "b"])];
        newest.keep(Position(5), open.iter());
        newest.see(&row(8, "T", &["b"]), Position(5));
        let first = |newest: &NewestEvents, filter: &Filter, after| {
            newest.first_match(filter, Position(after)).map(|at| at.0)
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

    /// Goal: the memory is bounded, and says from where on it knows everything; what is not committed stays.
    #[test]
    fn the_memory_is_bounded() {
        let mut newest = NewestEvents::default();
        newest.keep(Position(0), std::iter::empty());
        let events = EVENTS_MAX as u64 + 100;
        for position in 1..=events {
            newest.see(&row(position, "T", &[&position.to_string()]), Position(50));
        }
        assert_eq!(newest.known_after(), Position(50), "the others are open");
        newest.see(&row(events + 1, "T", &[]), Position(events));
        assert_eq!(newest.known_after(), Position(101));
        assert_eq!(newest.events.len(), EVENTS_MAX);
        for position in events + 2..3 * events {
            newest.see(
                &row(position, "T", &[&position.to_string()]),
                Position(position),
            );
        }
        assert!(newest.last_with.len() <= 2 * EVENTS_MAX + 1);
        // Many tags, each of one event.
        let (mut newest, mut kept) = (NewestEvents::default(), 0);
        newest.keep(Position(0), std::iter::empty());
        for position in 1..=events {
            let tags: Vec<String> = (0..4).map(|tag| format!("{position}-{tag}")).collect();
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            newest.see(&row(position, "T", &tags), Position(position));
            kept = newest.last_with.len().max(kept);
        }
        assert!(kept <= 8 * EVENTS_MAX + 4, "{kept}");
        for position in events + 1..UNASKED_MAX + 2 {
            newest.see(&row(position, "T", &[]), Position(position));
        }
        assert!(!newest.is_kept && newest.events.is_empty(), "nobody asks");
    }
}
