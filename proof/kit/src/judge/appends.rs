//! The comparison itself. Its time is linear in what was recorded and stored, but for sorting what one tailer missed.

use std::collections::{HashMap, HashSet};

use gesta_core::{AppendedStream, EventId, LogId, Position, Revision, StreamId};

use super::order;
use super::report::{HistoryReport, Violation};
use super::{Attempt, AttemptPart, Outcome, Records, Request, Seen, Stored, Tailer};

/// Where each event is stored; usually that is one place.
pub(super) type Places<'a> = HashMap<(&'a StreamId, EventId), Vec<&'a Seen>>;

/// What all attempts of a request together say.
enum Conclusion<'a> {
    Acknowledged(Vec<&'a gesta_core::Appended>),
    Refused,
    Unknown,
}

pub(super) fn check(records: &Records, stored: &Stored) -> HistoryReport {
    let mut report = HistoryReport {
        requests: records.requests.len(),
        attempts: records
            .requests
            .iter()
            .map(|request| request.attempts.len())
            .sum(),
        events_stored: stored.events.len(),
        looks: records.looks.len(),
        ..HistoryReport::default()
    };
    check_logs(&stored.events, &mut report);
    check_streams(&stored.events, &mut report);

    let mut places: Places<'_> = HashMap::new();
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
    order::check(records, &stored.events, &places, &mut report);
    for (tailer, wanted) in records.tailers.iter().zip(&stored.wanted) {
        check_tailer(tailer, wanted, &stored.events, &mut report);
    }
    // A tailer of a store without a single event has no list.
    for tailer in records.tailers.iter().skip(stored.wanted.len()) {
        check_tailer(tailer, &[], &stored.events, &mut report);
    }
    report
}

/// Checks that positions grow and that `created` does not decrease.
fn check_logs(events: &[Seen], report: &mut HistoryReport) {
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
fn check_streams(events: &[Seen], report: &mut HistoryReport) {
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
    places: &Places<'_>,
    asked: &HashSet<(&StreamId, EventId)>,
    report: &mut HistoryReport,
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

fn check_request(request: &Request, places: &Places<'_>, report: &mut HistoryReport) {
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

fn report_lost(request: &Request, found: &[Vec<Option<&Seen>>], report: &mut HistoryReport) {
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
fn check_whole(request: &Request, found: &[Vec<Option<&Seen>>], report: &mut HistoryReport) {
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
    answer: &gesta_core::Appended,
    report: &mut HistoryReport,
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

/// Checks that a tailer has seen strictly growing positions, and of its range exactly what is stored in the end.
fn check_tailer(tailer: &Tailer, wanted: &[usize], events: &[Seen], report: &mut HistoryReport) {
    report.events_tailed += tailer.seen.len();
    let mut logs: Vec<LogId> = tailer.seen.iter().map(|event| event.log).collect();
    logs.sort_unstable();
    logs.dedup();
    for log in logs {
        let after = tailer
            .after
            .get(usize::from(log.0))
            .copied()
            .unwrap_or_default();
        let mut passed = after;
        let mut got: HashMap<Position, &Seen> = HashMap::new();
        for event in tailer.seen.iter().filter(|event| event.log == log) {
            if event.position <= passed {
                report.violations.push(Violation::TailerOrder {
                    tailer: tailer.name.clone(),
                    log,
                    position: event.position,
                });
            }
            passed = passed.max(event.position);
            got.insert(event.position, event);
        }
        let in_range = wanted
            .iter()
            .map(|at| &events[*at])
            .filter(|event| event.log == log && event.position > after && event.position <= passed);
        for event in in_range {
            let position = event.position;
            let tailer = tailer.name.clone();
            match got.remove(&position) {
                Some(seen) if seen == event => {}
                Some(_) => report.violations.push(Violation::Vanished {
                    tailer,
                    log,
                    position,
                }),
                None => report.violations.push(Violation::AppearedBelowPassed {
                    tailer,
                    log,
                    position,
                }),
            }
        }
        // These were seen but are not stored.
        let mut vanished: Vec<Position> = got.into_keys().filter(|p| *p > after).collect();
        vanished.sort_unstable();
        report
            .violations
            .extend(vanished.into_iter().map(|position| Violation::Vanished {
                tailer: tailer.name.clone(),
                log,
                position,
            }));
    }
}
