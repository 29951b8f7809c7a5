//! Looking up whether an append is a retry of one that is stored.

use std::collections::HashMap;

use gesta_core::backend::{Backend, EventLookup, EventRef, RowId};
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
    /// The first one probably at this position.
    Near(Position),
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
type Hits = HashMap<(RowId, EventId), EventRef>;

/// Answers the questions about several commands, each in its turn; those about parts of the window in one statement.
pub(crate) async fn look_up(
    backend: &dyn Backend,
    log: LogId,
    commands: Vec<Questions>,
) -> Vec<Result<Vec<Found>>> {
    let all = || commands.iter().flatten().flatten();
    let hits = match find_in_window(backend, log, all()).await {
        Ok(hits) => hits,
        Err(error) => return commands.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut answers = Vec::with_capacity(commands.len());
    for questions in commands {
        answers.push(answer_all(backend, log, questions, &hits).await);
    }
    answers
}

/// Looks for the first events of all questions that suspect them somewhere in the window.
async fn find_in_window(
    backend: &dyn Backend,
    log: LogId,
    questions: impl Iterator<Item = &Question>,
) -> Result<Hits> {
    let mut events = Vec::new();
    let mut parts: Option<WindowPart> = None;
    for question in questions {
        if let (Suspected::Within(part), Some(id)) = (&question.place, question.ids.first()) {
            events.push((question.row, *id));
            parts = Some(parts.map_or(*part, |parts| parts.and(*part)));
        }
    }
    let Some(WindowPart {
        after,
        created_from,
        until,
    }) = parts
    else {
        return Ok(Hits::new());
    };
    let lookup = EventLookup::Ids {
        events,
        after,
        created_from,
        until,
    };
    let found = backend.lookup(log, lookup).await?;
    // In order of position: the newest stays.
    let place = |event: EventRef| ((event.stream_row, event.id), event);
    Ok(found.into_iter().map(place).collect())
}

async fn answer_all(
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
        Suspected::Near(position) => {
            let at = EventLookup::Positions(vec![position]);
            let hits = backend.lookup(log, at).await?;
            let is_it = |hit: &&EventRef| hit.id == first_id && hit.stream == question.stream;
            hits.iter().find(is_it).map(|hit| hit.revision)
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
    let stored = backend.lookup(log, lookup).await?;
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
