//! Does the reads that the sequencer asks for, on a backend.
//!
//! Each read is a task of its own. A read holds a connection of the store's pool, and nothing that waits for a read may
//! keep a connection that another read needs.

mod matches;

use futures::{StreamExt, TryStreamExt, stream};
use gesta_core::backend::{Backend, EventLookup, EventRef, Purpose, RowId};
use gesta_core::{
    AppendedStream, EventId, IdempotencyWindow, LogId, Position, Result, Revision, Timestamp,
    log_of,
};

use crate::sequencer::job::{Answer, Gave, Job, What};
use crate::sequencer::knowledge::{Hashes, Listing, OlderIds};
use crate::sequencer::lookup::{Found, Hits, Question, Questions, Search, Suspected, WindowPart};

/// The number of names of streams that are read at once.
const NAMES_PAGE: usize = 5_000;
/// The number of positions whose ids are read at once.
const IDS_PART: u64 = 20_000;
/// How many such reads are under way at once. With other logs there is one, because the logs share the connections.
const IDS_PARTS_AT_ONCE: usize = 2;

/// Does a read. An error of the backend is part of the answer.
pub async fn run(job: Job, backend: &dyn Backend, log: LogId) -> Answer {
    Answer(match job.0 {
        What::End => Gave::End(backend.log_end(log, Purpose::Append).await),
        What::After(position, limit) => Gave::After(
            backend
                .lookup(log, EventLookup::After { position, limit }, Purpose::Append)
                .await,
        ),
        What::Load(request) => Gave::Loaded(backend.load(log, request, Purpose::Append).await),
        What::Search(search) => Gave::Searched(run_search(backend, log, search).await),
        What::LookUp(questions, hits) => {
            Gave::LookedUp(answer_all(backend, log, questions, &hits).await)
        }
        What::List(listing) => Gave::Listed(list(backend, log, &listing).await),
        What::WindowStart { window, now, end } => {
            Gave::WindowStart(find_start(backend, log, window, now, end).await)
        }
        What::Ids(ids) => Gave::Ids(read_ids(backend, log, ids).await),
        What::Match(search) => Gave::Matched(matches::first_match(backend, log, &search).await),
    })
}

async fn run_search(backend: &dyn Backend, log: LogId, search: Search) -> Result<Hits> {
    match search.part {
        Some(part) => find(backend, log, search.events, part).await,
        None => Ok(Hits::new()),
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

/// Answers the questions about one command. `hits` holds what the search found for the questions about the window.
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
    for place in &question.places {
        let found = look_at(backend, log, &question, place, hits).await?;
        if found != Found::Nothing {
            return Ok(found);
        }
    }
    Ok(Found::Nothing)
}

/// Looks at one of the places where the events of a question may be stored.
async fn look_at(
    backend: &dyn Backend,
    log: LogId,
    question: &Question,
    place: &Suspected,
    hits: &Hits,
) -> Result<Found> {
    let Some(first_id) = question.ids.first().copied() else {
        return Ok(Found::Nothing);
    };
    let key = (question.row, first_id);
    let first = match place {
        Suspected::At(first) => return compare(backend, log, question, *first).await,
        Suspected::Near(position, rest) => {
            let at = EventLookup::Positions(vec![*position]);
            let hits = backend.lookup(log, at, Purpose::Append).await?;
            let is_it = |hit: &&EventRef| hit.id == first_id && hit.stream == question.stream;
            match hits.iter().find(is_it) {
                Some(hit) => Some(hit.clone()),
                // Another id with the same hash has hidden what is older, or the event was removed.
                None => {
                    let older = find(backend, log, vec![key], *rest).await?;
                    match older.get(&key) {
                        None if hits.is_empty() => {
                            return Ok(Found::Removed {
                                position: *position,
                                begun: begun_at(backend, log, question).await?,
                            });
                        }
                        older => older.cloned(),
                    }
                }
            }
        }
        Suspected::Within(_) => hits.get(&key).cloned(),
    };
    let Some(first) = first else {
        return Ok(Found::Nothing);
    };
    match compare(backend, log, question, first.revision).await? {
        Found::Nothing => Ok(Found::Otherwise {
            first: first.revision,
            position: first.position,
        }),
        found => Ok(found),
    }
}

/// Looks where the first event since the last delete of a stream is stored.
async fn begun_at(
    backend: &dyn Backend,
    log: LogId,
    question: &Question,
) -> Result<Option<Position>> {
    if question.deleted_before == Revision(0) {
        return Ok(None);
    }
    let lookup = EventLookup::Revisions {
        stream: question.row,
        first: question.deleted_before,
        count: 1,
    };
    let found = backend.lookup(log, lookup, Purpose::Append).await?;
    Ok(found.first().map(|event| event.position))
}

/// Compares the stored events from revision `first` on with the ids of the question.
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

/// Reads all names of the log; `None` if there are more than are to be kept.
async fn list(backend: &dyn Backend, log: LogId, listing: &Listing) -> Result<Option<Hashes>> {
    let logs = backend.info().logs;
    let mut names = Listing::empty();
    // Those of metadata and other system streams are listed apart.
    for prefix in ["", "$"] {
        let mut after = None;
        loop {
            let page = backend
                .list_streams(prefix, after.as_ref(), NAMES_PAGE)
                .await?;
            let own = page.iter().filter(|stream| log_of(stream, logs) == log);
            if !listing.take(own, &mut names) {
                return Ok(None);
            }
            let Some(last) = page.into_iter().next_back() else {
                break;
            };
            after = Some(last);
        }
    }
    Ok(Some(names))
}

async fn read_ids(backend: &dyn Backend, log: LogId, mut ids: OlderIds) -> Result<OlderIds> {
    let parts_at_once = match backend.info().logs {
        1 => IDS_PARTS_AT_ONCE,
        _ => 1,
    };
    let (from, to) = (ids.from().0, ids.to().0);
    let starts = (from..to).step_by(usize::try_from(IDS_PART).unwrap_or(usize::MAX));
    let mut parts = stream::iter(starts)
        .map(|after| {
            let end = after.saturating_add(IDS_PART).min(to);
            backend.read_ids(log, Position(after), Position(end))
        })
        .buffer_unordered(parts_at_once);
    while let Some(part) = parts.try_next().await? {
        part.into_iter().for_each(|id| ids.insert(id));
    }
    Ok(ids)
}

/// Finds the position before the first event of the window. The window is at least as long in time and in positions as
/// `window` demands.
async fn find_start(
    backend: &dyn Backend,
    log: LogId,
    window: IdempotencyWindow,
    now: Timestamp,
    end: Position,
) -> Result<Position> {
    let age = i64::try_from(window.time.as_micros()).unwrap_or(i64::MAX);
    let by_time = position_before(backend, log, Timestamp(now.0.saturating_sub(age)), end).await?;
    Ok(by_time.min(Position(end.0.saturating_sub(window.positions))))
}

/// Finds a position such that every event after it, and no event at or before it, may be as young as `created`. This is
/// a binary search, which works because `created` never decreases along positions.
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
                Purpose::Read,
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
