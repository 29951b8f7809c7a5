//! The question whether an append is a retry of a stored one: what is asked, and what may be found.
//! Not here: asking the database (`jobs`).

use std::collections::HashMap;

use gesta_core::backend::{EventRef, RowId};
use gesta_core::{AppendedStream, EventId, Position, Revision, StreamId, Timestamp};

/// What must be looked up for one part.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) stream: StreamId,
    pub(crate) row: RowId,
    pub(crate) ids: Vec<EventId>,
    /// The first revision since the last delete of the stream, if events are asked about; 0 if there was none.
    pub(crate) deleted_before: Revision,
    /// Where the events may be stored. The places are looked at in this order, until something is found.
    pub(crate) places: Vec<Suspected>,
}

/// Where the events may be stored.
#[derive(Debug, Clone)]
pub(crate) enum Suspected {
    /// The events may be stored from this revision on.
    At(Revision),
    /// The first event is probably stored at this position; if not, it may be anywhere in this part of the log.
    Near(Position, WindowPart),
    /// The first event may be anywhere in this part of the log.
    Within(WindowPart),
}

/// The part of the window that the ids in memory do not cover.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowPart {
    /// The part begins after this position, or with the first event that is not older than `created_from`, whichever
    /// comes first.
    pub(crate) after: Position,
    /// The time from which on events belong to the part, also if they are not after `after`.
    pub(crate) created_from: Timestamp,
    /// The last position of the part.
    pub(crate) until: Position,
}

impl WindowPart {
    /// Returns the smallest part that holds both.
    fn and(self, other: Self) -> Self {
        Self {
            after: self.after.min(other.after),
            created_from: self.created_from.min(other.created_from),
            until: self.until.max(other.until),
        }
    }
}

/// What a lookup found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing was found: the part is not a retry.
    Nothing,
    /// Exactly these events are stored: this is the answer of the first attempt.
    Stored(AppendedStream),
    /// The first event is stored here, but other events follow it.
    Otherwise { first: Revision, position: Position },
    /// The first event was probably stored at this position, and was removed since.
    Removed {
        position: Position,
        /// Where the first event since the last delete of the stream is; `None` if there is no such event, or if it was
        /// removed as well.
        begun: Option<Position>,
    },
}

/// What is asked about one command: a question for each of its parts. A part without a question is not a retry.
pub(crate) type Questions = Vec<Option<Question>>;

/// Where events with certain ids are stored, if they are.
pub(crate) type Hits = HashMap<(RowId, EventId), EventRef>;

/// Returns whether the search has answered these questions: nothing must be compared, and nothing must be looked up
/// elsewhere.
pub(crate) fn found_nothing(questions: &Questions, hits: &Hits) -> bool {
    questions.iter().flatten().all(|question| {
        let first = question.ids.first().map(|id| (question.row, *id));
        let is_searched = |place: &Suspected| matches!(place, Suspected::Within(_));
        question.places.iter().all(is_searched)
            && first.is_none_or(|first| !hits.contains_key(&first))
    })
}

/// A search for the first events of all questions that suspect them anywhere in the window.
#[derive(Debug, Clone, Default)]
pub(crate) struct Search {
    pub(crate) events: Vec<(RowId, EventId)>,
    /// The part of the window that is searched; `None` if nothing is.
    pub(crate) part: Option<WindowPart>,
}

impl Search {
    pub(crate) fn of<'a>(questions: impl Iterator<Item = &'a Question>) -> Self {
        let mut search = Self::default();
        for question in questions {
            for place in &question.places {
                if let (Suspected::Within(part), Some(id)) = (place, question.ids.first()) {
                    search.events.push((question.row, *id));
                    search.part = Some(search.part.map_or(*part, |all| all.and(*part)));
                }
            }
        }
        search
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: WindowPart = WindowPart {
        after: Position(5),
        created_from: Timestamp(50),
        until: Position(9),
    };

    fn question(row: u64, place: Suspected) -> Question {
        Question {
            stream: StreamId::new("s").expect("valid"),
            row: RowId(row),
            ids: vec![EventId::random()],
            deleted_before: Revision(0),
            places: vec![place],
        }
    }

    /// Goal: a search answers a command only if all its questions are about the window and none of their events was
    /// found.
    #[test]
    fn a_search_that_finds_nothing_answers_questions_about_the_window() {
        let [a, b] = [1, 2].map(|row| question(row, Suspected::Within(PART)));
        let elsewhere = [
            question(3, Suspected::At(Revision(1))),
            question(3, Suspected::Near(Position(7), PART)),
        ];
        let none = Hits::new();
        assert!(found_nothing(
            &vec![Some(a.clone()), None, Some(b.clone())],
            &none
        ));
        for other in elsewhere {
            assert!(!found_nothing(&vec![Some(a.clone()), Some(other)], &none));
        }
        let event = EventRef {
            position: Position(7),
            writer: gesta_core::backend::WriterEpoch(1),
            created: Timestamp(1),
            stream: b.stream.clone(),
            stream_row: b.row,
            revision: Revision(0),
            id: b.ids[0],
            event_type: gesta_core::EventType::new("e").expect("valid"),
            type_row: RowId(1),
        };
        let hits = Hits::from([((b.row, b.ids[0]), event)]);
        assert!(found_nothing(&vec![Some(a.clone())], &hits));
        assert!(!found_nothing(&vec![Some(a), Some(b)], &hits));
    }

    /// Goal: one search asks for the events of all questions about the window, in the smallest part that holds all of
    /// theirs.
    #[test]
    fn a_search_covers_the_parts_of_all_questions() {
        let other = WindowPart {
            after: Position(4),
            created_from: Timestamp(60),
            until: Position(11),
        };
        let questions = [
            question(1, Suspected::Within(PART)),
            question(2, Suspected::Within(other)),
            question(3, Suspected::At(Revision(1))),
        ];
        let search = Search::of(questions.iter());
        let rows: Vec<RowId> = search.events.iter().map(|(row, _)| *row).collect();
        assert_eq!(rows, [RowId(1), RowId(2)]);
        let part = search.part.expect("two are about the window");
        assert_eq!(
            (part.after, part.created_from, part.until),
            (Position(4), Timestamp(50), Position(11))
        );
        assert!(Search::of(questions[2..].iter()).part.is_none());
    }
}
