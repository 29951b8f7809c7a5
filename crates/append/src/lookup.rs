//! Looking up whether an append is a retry of one that is stored.

use std::collections::HashMap;

use gesta_core::backend::{Backend, EventLookup, EventRef, Purpose, RowId};
use gesta_core::{AppendedStream, EventId, LogId, Position, Result, Revision, StreamId, Timestamp};

/// What to look up for one part.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) stream: StreamId,
    pub(crate) row: RowId,
    pub(crate) ids: Vec<EventId>,
    pub(crate) place: Suspected,
}

/// Where the events may be stored.
#[derive(Debug)]
pub(crate) enum Suspected {
    /// From this revision on.
    At(Revision),
    /// The first one probably at this position; if not, somewhere in this part of the log.
    Near(Position, WindowPart),
    /// Somewhere in this part of the log.
    Within(WindowPart),
}

/// The part of the window that the ids kept in memory do not cover.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowPart {
    /// It begins behind this position …
    pub(crate) after: Position,
    /// … or with the first event that is not older, whichever comes first.
    pub(crate) created_from: Timestamp,
    /// Its last position.
    pub(crate) until: Position,
}

impl WindowPart {
    /// The smallest part that holds both.
    fn and(self, other: Self) -> Self {
        Self {
            after: self.after.min(other.after),
            created_from: self.created_from.min(other.created_from),
            until: self.until.max(other.until),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing: not a retry.
    Nothing,
    /// Exactly these events: the answer of the first time.
    Stored(AppendedStream),
    /// The first event is stored, but others follow it.
    Otherwise,
}

/// What is asked about one command: a question for each of its parts; a part without one is not a retry.
pub(crate) type Questions = Vec<Option<Question>>;

/// Where events with certain ids are stored, if they are.
pub(crate) type Hits = HashMap<(RowId, EventId), EventRef>;

/// Answers the questions about one command.
pub(crate) async fn look_up(
    backend: &dyn Backend,
    log: LogId,
    questions: Questions,
) -> Result<Vec<Found>> {
    let search = Search::of(questions.iter().flatten());
    let hits = search.run(backend, log).await?;
    answer_all(backend, log, questions, &hits).await
}

/// True if the search has answered these: nothing is to be compared, and nothing to be looked up elsewhere.
pub(crate) fn found_nothing(questions: &Questions, hits: &Hits) -> bool {
    questions.iter().flatten().all(|question| {
        let first = question.ids.first().map(|id| (question.row, *id));
        matches!(question.place, Suspected::Within(_))
            && first.is_none_or(|first| !hits.contains_key(&first))
    })
}

/// A search for the first events of all questions that suspect them somewhere in the window.
pub(crate) struct Search {
    events: Vec<(RowId, EventId)>,
    part: Option<WindowPart>,
}

impl Search {
    pub(crate) fn of<'a>(questions: impl Iterator<Item = &'a Question>) -> Self {
        let mut search = Self {
            events: Vec::new(),
            part: None,
        };
        for question in questions {
            if let (Suspected::Within(part), Some(id)) = (&question.place, question.ids.first()) {
                search.events.push((question.row, *id));
                search.part = Some(search.part.map_or(*part, |all| all.and(*part)));
            }
        }
        search
    }

    pub(crate) async fn run(self, backend: &dyn Backend, log: LogId) -> Result<Hits> {
        match self.part {
            Some(part) => find(backend, log, self.events, part).await,
            None => Ok(Hits::new()),
        }
    }
}

async fn find(
    backend: &dyn Backend,
    log: LogId,
    events: Vec<(RowId, EventId)>,
    part: WindowPart,
) -> Result<Hits> {
    let WindowPart {
        after,
        created_from,
        until,
    } = part;
    let lookup = EventLookup::Ids {
        events,
        after,
        created_from,
        until,
    };
    let found = backend.lookup(log, lookup, Purpose::Append).await?;
    // In order of position: the newest stays.
    let place = |event: EventRef| ((event.stream_row, event.id), event);
    Ok(found.into_iter().map(place).collect())
}

/// Answers the questions about one command, of which those about the window were searched.
pub(crate) async fn answer_all(
    backend: &dyn Backend,
    log: LogId,
    questions: Questions,
    hits: &Hits,
) -> Result<Vec<Found>> {
    let mut found = Vec::with_capacity(questions.len());
    for question in questions {
        found.push(match question {
            Some(question) => answer(backend, log, question, hits).await?,
            None => Found::Nothing,
        });
    }
    Ok(found)
}

async fn answer(
    backend: &dyn Backend,
    log: LogId,
    question: Question,
    hits: &Hits,
) -> Result<Found> {
    let Some(first_id) = question.ids.first().copied() else {
        return Ok(Found::Nothing);
    };
    let first = match question.place {
        Suspected::At(first) => return compare(backend, log, &question, first).await,
        Suspected::Near(position, rest) => {
            let at = EventLookup::Positions(vec![position]);
            let hits = backend.lookup(log, at, Purpose::Append).await?;
            let is_it = |hit: &&EventRef| hit.id == first_id && hit.stream == question.stream;
            match hits.iter().find(is_it) {
                Some(hit) => Some(hit.revision),
                // Another id with the same hash has hidden what is older.
                None => {
                    let key = (question.row, first_id);
                    let hits = find(backend, log, vec![key], rest).await?;
                    hits.get(&key).map(|hit| hit.revision)
                }
            }
        }
        Suspected::Within(_) => hits.get(&(question.row, first_id)).map(|hit| hit.revision),
    };
    match first {
        Some(first) => match compare(backend, log, &question, first).await? {
            Found::Nothing => Ok(Found::Otherwise),
            found => Ok(found),
        },
        None => Ok(Found::Nothing),
    }
}

/// Compares the stored events from revision `first` on with the ids.
async fn compare(
    backend: &dyn Backend,
    log: LogId,
    question: &Question,
    first: Revision,
) -> Result<Found> {
    let lookup = EventLookup::Revisions {
        stream: question.row,
        first,
        count: question.ids.len(),
    };
    let stored = backend.lookup(log, lookup, Purpose::Append).await?;
    let equal = stored.len() == question.ids.len()
        && stored.iter().zip(&question.ids).all(|(a, b)| a.id == *b);
    let (Some(first), Some(last), true) = (stored.first(), stored.last(), equal) else {
        return Ok(Found::Nothing);
    };
    Ok(Found::Stored(AppendedStream {
        stream: question.stream.clone(),
        first_revision: first.revision,
        last_revision: last.revision,
        position: last.position,
    }))
}
