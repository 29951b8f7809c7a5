//! Appends: is everything acknowledged stored, once, whole and at the place that was answered, and nothing that was
//! refused; and do the answers fit the order of the log (`streams`)?
//!
//! Cost: linear in what was recorded and stored, but for sorting.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use gesta_core::{
    AllFrom, Appended, AppendedStream, EventId, EventStore, LogId, Position, ReadAll,
    RecordedEvent, Result, Revision, StreamId,
};

use super::{streams, tails};
use crate::history::{
    Attempt, AttemptPart, Outcome, Records, Request, RunHistory, Seen, records_of,
};
use crate::operations::Operation;
use crate::verdict::{Kind, Verdict, Violation};

/// Where each event is stored; usually that is one place.
pub(super) type StoredPlaces<'a> = HashMap<(&'a StreamId, EventId), Vec<&'a Seen>>;

/// What the store holds in the end, in the order of each log.
#[derive(Debug, Default)]
struct Stored {
    events: Vec<Seen>,
    /// For each tailer, the indices of the events that it should have seen by its filter.
    wanted: Vec<Vec<usize>>,
}

impl Stored {
    fn push(&mut self, event: &RecordedEvent, records: &Records) {
        self.wanted.resize_with(records.tailers.len(), Vec::new);
        for (tailer, wanted) in records.tailers.iter().zip(&mut self.wanted) {
            if tailer.filter.matches(event) {
                wanted.push(self.events.len());
            }
        }
        self.events.push(Seen::from(event));
    }
}

impl RunHistory {
    /// Reads the whole store and compares it with this history. It is to be called when all writers and tailers have
    /// stopped.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn check(&self, store: &dyn EventStore) -> Result<Verdict> {
        let mut stored = Stored::default();
        let mut request = ReadAll::forwards().limit(gesta_core::limits::PAGE_EVENTS_MAX);
        loop {
            let page = store.read_all(request.clone()).await?;
            {
                let records = self.lock();
                page.events
                    .iter()
                    .for_each(|event| stored.push(event, &records));
            }
            if page.end {
                return Ok(judge(&self.lock(), &stored));
            }
            request.from = AllFrom::Checkpoint(page.next);
        }
    }

    /// Compares this history with events that were read in another way, each log in its order.
    #[must_use]
    pub fn check_against(&self, events: &[RecordedEvent]) -> Verdict {
        let records = self.lock();
        let mut stored = Stored::default();
        events.iter().for_each(|event| stored.push(event, &records));
        judge(&records, &stored)
    }
}

impl RunHistory {
    /// Adds the outcomes that were unknown without need: of attempts in none of these times, in which nobody is to
    /// blame for it.
    pub fn check_unknown(&self, excused: &[(Instant, Instant)], verdict: &mut Verdict) {
        for unknown in self.unknown() {
            let overlaps =
                |time: &(Instant, Instant)| time.0 <= unknown.ended && time.1 >= unknown.begun;
            if !excused.iter().any(overlaps) {
                let client = unknown.client;
                verdict.add(Kind::UnknownWithoutNeed, 1, || {
                    format!("client {client}: {}", unknown.text)
                });
            }
        }
    }
}

/// Judges the operations of one stream as a history is judged, by what the last read of the whole stream shows.
///
/// # Panics
/// If some are not operations of a stream, or the whole stream was never read.
#[must_use]
pub fn stream(operations: &[Operation]) -> Verdict {
    let (records, events) = records_of(operations);
    let stored = Stored {
        events,
        wanted: Vec::new(),
    };
    judge(&records, &stored)
}

/// What all attempts of a request together say.
enum Conclusion<'a> {
    Acknowledged(Vec<&'a Appended>),
    Refused,
    Unknown,
}

fn judge(records: &Records, stored: &Stored) -> Verdict {
    let attempts = || records.requests.iter().flat_map(|one| &one.attempts);
    let is_refused = |attempt: &&Attempt| matches!(attempt.ended, Some((_, Outcome::Refused)));
    let mut report = Verdict {
        requests: records.requests.len(),
        attempts: attempts().count(),
        refused_otherwise: attempts().filter(is_refused).count(),
        events_stored: stored.events.len(),
        looks: records.looks.len(),
        ..Verdict::default()
    };
    check_logs(&stored.events, &mut report);
    check_streams(&stored.events, &mut report);

    let mut places: StoredPlaces<'_> = HashMap::new();
    for event in &stored.events {
        places
            .entry((&event.stream, event.id))
            .or_default()
            .push(event);
    }
    let mut asked: HashSet<(&StreamId, EventId)> = HashSet::new();
    for request in &records.requests {
        check_request(request, &places, &mut report);
        for part in &request.parts {
            asked.extend(part.ids.iter().map(|id| (&part.stream, *id)));
        }
    }
    check_doubles(&places, &asked, &mut report);
    streams::check(records, &stored.events, &places, &mut report);
    for (tailer, wanted) in records.tailers.iter().zip(&stored.wanted) {
        tails::check(tailer, wanted, &stored.events, &mut report);
    }
    // A tailer of a store without a single event has no list.
    for tailer in records.tailers.iter().skip(stored.wanted.len()) {
        tails::check(tailer, &[], &stored.events, &mut report);
    }
    report
}

/// Checks that positions grow and that `created` does not decrease.
fn check_logs(events: &[Seen], report: &mut Verdict) {
    let mut last: HashMap<LogId, &Seen> = HashMap::new();
    for event in events {
        let before = last.insert(event.log, event);
        let (log, position) = (event.log, event.position);
        if position <= before.map_or(Position::START, |before| before.position) {
            report
                .violations
                .push(Violation::PositionOrder { log, position });
        }
        if before.is_some_and(|before| event.created < before.created) {
            report
                .violations
                .push(Violation::CreatedDecreased { log, position });
        }
    }
}

/// Checks that the revisions of each stream are 0, 1, 2, … in the order of the log.
fn check_streams(events: &[Seen], report: &mut Verdict) {
    let mut next: HashMap<&StreamId, Revision> = HashMap::new();
    for event in events {
        let expected = next.entry(&event.stream).or_default();
        if event.revision != *expected {
            report.violations.push(Violation::RevisionGap {
                stream: event.stream.clone(),
                expected: *expected,
                found: event.revision,
            });
        }
        *expected = event.revision.next();
    }
}

fn check_doubles(
    places: &StoredPlaces<'_>,
    asked: &HashSet<(&StreamId, EventId)>,
    report: &mut Verdict,
) {
    for ((stream, id), found) in places {
        if !asked.contains(&(*stream, *id)) {
            report.events_foreign += found.len();
        } else if found.len() > 1 {
            report.violations.push(Violation::StoredTwice {
                stream: (*stream).clone(),
                id: *id,
            });
        }
    }
}

/// Returns what the attempts of a request together say.
fn conclusion(attempts: &[Attempt]) -> Conclusion<'_> {
    let acknowledged: Vec<_> = attempts
        .iter()
        .filter_map(|attempt| match &attempt.ended {
            Some((_, Outcome::Acknowledged(appended))) => Some(appended),
            _ => None,
        })
        .collect();
    if !acknowledged.is_empty() {
        return Conclusion::Acknowledged(acknowledged);
    }
    let judged_later = |unknown: &Attempt| {
        let Some((ended, _)) = unknown.ended else {
            return false;
        };
        attempts
            .iter()
            .any(|attempt| attempt.began > ended && was_refused(attempt))
    };
    let open = attempts.iter().any(|attempt| {
        matches!(attempt.ended, None | Some((_, Outcome::Unknown))) && !judged_later(attempt)
    });
    if open {
        Conclusion::Unknown
    } else {
        Conclusion::Refused
    }
}

fn check_request(request: &Request, places: &StoredPlaces<'_>, report: &mut Verdict) {
    let found: Vec<Vec<Option<&Seen>>> = request
        .parts
        .iter()
        .map(|part| {
            let place = |id: &EventId| places.get(&(&part.stream, *id)).map(|found| found[0]);
            part.ids.iter().map(place).collect()
        })
        .collect();
    let none = found.iter().flatten().all(Option::is_none);
    let (stream, id) = (request.parts[0].stream.clone(), request.parts[0].ids[0]);
    let acknowledged = match conclusion(&request.attempts) {
        Conclusion::Acknowledged(answers) => {
            report.acknowledged += 1;
            report.events_acknowledged += request.parts.iter().map(|p| p.ids.len()).sum::<usize>();
            if refused_after_acknowledged(&request.attempts) {
                let violation = Violation::RefusedAfterAcknowledged { stream, id };
                report.violations.push(violation);
            }
            for answer in answers {
                check_answer(request, &found, answer, report);
            }
            true
        }
        Conclusion::Refused => {
            report.refused += 1;
            if !none {
                report
                    .violations
                    .push(Violation::RefusedStored { stream, id });
            }
            false
        }
        Conclusion::Unknown => {
            if none {
                report.unknown_absent += 1;
            } else {
                report.unknown_stored += 1;
            }
            false
        }
    };
    if acknowledged {
        report_lost(request, &found, report);
    }
    if !none {
        check_whole(request, &found, report);
    }
}

pub(super) fn was_refused(attempt: &Attempt) -> bool {
    matches!(&attempt.ended, Some((_, outcome)) if outcome.is_refusal())
}

fn refused_after_acknowledged(attempts: &[Attempt]) -> bool {
    let acknowledged = attempts.iter().filter_map(|attempt| match attempt.ended {
        Some((ended, Outcome::Acknowledged(_))) => Some(ended),
        _ => None,
    });
    let first = acknowledged.min();
    attempts
        .iter()
        .any(|attempt| was_refused(attempt) && first.is_some_and(|first| attempt.began > first))
}

fn report_lost(request: &Request, found: &[Vec<Option<&Seen>>], report: &mut Verdict) {
    for (part, found) in request.parts.iter().zip(found) {
        for (id, found) in part.ids.iter().zip(found) {
            if found.is_none() {
                report.violations.push(Violation::AcknowledgedLost {
                    stream: part.stream.clone(),
                    id: *id,
                });
            }
        }
    }
}

/// Checks that every part of a request is there, and that its events follow each other.
fn check_whole(request: &Request, found: &[Vec<Option<&Seen>>], report: &mut Verdict) {
    for (part, found) in request.parts.iter().zip(found) {
        let whole = found.iter().all(Option::is_some)
            && found.windows(2).all(|pair| match pair {
                [Some(a), Some(b)] => b.revision == a.revision.next(),
                _ => false,
            });
        if !whole {
            report.violations.push(Violation::PartlyStored {
                stream: part.stream.clone(),
                id: part.ids[0],
            });
        }
    }
}

/// Checks that an answer names the places where the events are.
fn check_answer(
    request: &Request,
    found: &[Vec<Option<&Seen>>],
    answer: &Appended,
    report: &mut Verdict,
) {
    for (i, (part, found)) in request.parts.iter().zip(found).enumerate() {
        let (Some(Some(first)), Some(Some(last))) = (found.first(), found.last()) else {
            continue;
        };
        let Some(detail) = difference(answer.log, answer.streams.get(i), part, first, last) else {
            continue;
        };
        report.violations.push(Violation::WrongPlace {
            stream: part.stream.clone(),
            id: part.ids[0],
            detail,
        });
    }
}

fn difference(
    log: LogId,
    answer: Option<&AppendedStream>,
    part: &AttemptPart,
    first: &Seen,
    last: &Seen,
) -> Option<String> {
    let Some(answer) = answer else {
        return Some("the answer does not name the stream".into());
    };
    let answered = (
        &answer.stream,
        log,
        answer.first_revision,
        answer.last_revision,
        answer.position,
    );
    let stored = (
        &part.stream,
        last.log,
        first.revision,
        last.revision,
        last.position,
    );
    (answered != stored).then(|| format!("answered {answered:?}, stored {stored:?}"))
}
