//! Looking up whether an append is a retry of one that is stored.

use gesta_core::backend::{Backend, EventLookup, RowId};
use gesta_core::{
    AppendedStream, EventId, IdempotencyWindow, LogId, Position, Result, Revision, StreamId,
    Timestamp,
};

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
    /// Somewhere behind this position, or not older than this.
    Since(Position, Timestamp),
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

/// Answers all questions; a part without question is not a retry.
pub(crate) async fn look_up(
    backend: &dyn Backend,
    log: LogId,
    questions: Vec<Option<Question>>,
) -> Result<Vec<Found>> {
    let mut found = Vec::with_capacity(questions.len());
    for question in questions {
        found.push(match question {
            Some(question) => answer(backend, log, question).await?,
            None => Found::Nothing,
        });
    }
    Ok(found)
}

async fn answer(backend: &dyn Backend, log: LogId, question: Question) -> Result<Found> {
    let Some(first_id) = question.ids.first().copied() else {
        return Ok(Found::Nothing);
    };
    let lookup = match question.place {
        Suspected::At(first) => return compare(backend, log, &question, first).await,
        Suspected::Near(position) => EventLookup::Positions(vec![position]),
        Suspected::Since(after, created_from) => EventLookup::Ids {
            stream: question.row,
            ids: vec![first_id],
            after,
            created_from,
        },
    };
    let hits = backend.lookup(log, lookup).await?;
    match hits
        .iter()
        .rev()
        .find(|hit| hit.id == first_id && hit.stream == question.stream)
    {
        Some(hit) => match compare(backend, log, &question, hit.revision).await? {
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

/// An id found in the log: stream, id, position, time.
pub(crate) type OlderId = (StreamId, EventId, Position, Timestamp);

/// Events read at once while warming up.
const WARM_UP_PAGE: usize = 5_000;

/// Reads the ids of the window up to `end`. Returns them and the position before the first one.
pub(crate) async fn read_window(
    backend: &dyn Backend,
    log: LogId,
    window: IdempotencyWindow,
    now: Timestamp,
    end: Position,
) -> Result<(Vec<OlderId>, Position)> {
    let age = i64::try_from(window.time.as_micros()).unwrap_or(i64::MAX);
    let by_time = position_before(backend, log, Timestamp(now.0.saturating_sub(age)), end).await?;
    let start = by_time.min(Position(end.0.saturating_sub(window.positions)));
    let mut ids = Vec::new();
    let mut after = start;
    while after < end {
        let page = backend
            .lookup(
                log,
                EventLookup::After {
                    position: after,
                    limit: WARM_UP_PAGE,
                },
            )
            .await?;
        let Some(last) = page.last() else { break };
        after = last.position;
        ids.extend(
            page.into_iter()
                .filter(|event| event.position <= end)
                .map(|event| (event.stream, event.id, event.position, event.created)),
        );
    }
    Ok((ids, start))
}

/// A position such that every event behind it, and none at or below it, may be as young as `created`.
/// Binary search: `created` never decreases along positions.
async fn position_before(
    backend: &dyn Backend,
    log: LogId,
    created: Timestamp,
    end: Position,
) -> Result<Position> {
    let (mut low, mut high) = (Position::START, end);
    while low < high {
        let middle = Position(low.0 + (high.0 - low.0) / 2);
        let next = backend
            .lookup(
                log,
                EventLookup::After {
                    position: middle,
                    limit: 1,
                },
            )
            .await?;
        match next.first() {
            Some(event) if event.created < created && event.position <= high => {
                low = event.position
            }
            _ => high = middle,
        }
    }
    Ok(low)
}
