//! Do the answers about each stream fit one order?
//!
//! The log is the order of all appends, so no search is needed: every answer tells how many events the stream had when
//! it was true. An append leads from one length to a greater one, a read or a refusal is true at one length. The
//! answers fit one order exactly if nothing that had ended before another thing began needs a greater length than that
//! one: were there a longer circle, two things of it would already contradict each other, since of two things that
//! ended before others began one ended first.

use std::collections::HashMap;

use gesta_core::{EventId, ExpectedRevision, StreamId};

use super::check::Places;
use super::report::{HistoryReport, Violation};
use super::{Outcome, Records, Request, Seen};

/// Something that was true of a stream at some moment between two others.
struct Fact {
    began: u64,
    /// `u64::MAX` without an answer.
    ended: u64,
    /// How many events the stream had before and after.
    before: u64,
    after: u64,
    what: String,
}

/// What is stored of a stream, and what is known of it.
#[derive(Default)]
struct Stream {
    ids: Vec<EventId>,
    facts: Vec<Fact>,
}

pub(super) fn check(
    records: &Records,
    stored: &[Seen],
    places: &Places<'_>,
    report: &mut HistoryReport,
) {
    let mut streams: HashMap<&StreamId, Stream> = HashMap::new();
    for event in stored {
        streams.entry(&event.stream).or_default().ids.push(event.id);
    }
    for request in &records.requests {
        add_append(request, places, &mut streams, report);
        add_conflicts(request, &mut streams, report);
    }
    for look in &records.looks {
        let stream = streams.entry(&look.stream).or_default();
        let ids = usize::try_from(look.length)
            .ok()
            .and_then(|length| stream.ids.get(..length))
            .filter(|ids| ids.ends_with(&look.last) && ids.is_empty() == look.last.is_empty());
        let what = format!("read as {} events", look.length);
        if ids.is_none() {
            report.violations.push(Violation::Untrue {
                stream: look.stream.clone(),
                detail: what.clone(),
            });
        }
        stream.facts.push(Fact {
            began: look.began,
            ended: look.ended,
            before: look.length,
            after: look.length,
            what,
        });
    }
    for (name, stream) in streams {
        check_stream(name, stream.facts, report);
    }
}

/// An append that is stored, whoever knows of it: it took effect after its first attempt had begun, and before its
/// first answer.
fn add_append<'a>(
    request: &'a Request,
    places: &Places<'_>,
    streams: &mut HashMap<&'a StreamId, Stream>,
    report: &mut HistoryReport,
) {
    let attempts = request.attempts.iter();
    let Some(began) = attempts.clone().map(|attempt| attempt.began).min() else {
        return;
    };
    let answers = attempts.filter_map(|attempt| match attempt.ended {
        Some((ended, Outcome::Acknowledged(_))) => Some(ended),
        _ => None,
    });
    let ended = answers.min().unwrap_or(u64::MAX);
    for part in &request.parts {
        let mut places = part.ids.iter().map(|id| places.get(&(&part.stream, *id)));
        let first = places.next().flatten().and_then(|found| found.first());
        // What is not stored whole is another request's, or is told of elsewhere.
        let Some(first) = first.filter(|_| places.all(|place| place.is_some())) else {
            continue;
        };
        let before = first.revision.0;
        let is_true = match part.expected {
            ExpectedRevision::Any => true,
            ExpectedRevision::NoStream => before == 0,
            ExpectedRevision::StreamExists => before > 0,
            ExpectedRevision::Exact(revision) => before == revision.next().0,
        };
        let what = format!("appended at revision {before}");
        if !is_true {
            report.violations.push(Violation::Untrue {
                stream: part.stream.clone(),
                detail: format!("{what}, expected {}", part.expected),
            });
        }
        streams.entry(&part.stream).or_default().facts.push(Fact {
            began,
            ended,
            before,
            after: before + part.ids.len() as u64,
            what,
        });
    }
}

/// Refusals tell how long a stream was.
fn add_conflicts<'a>(
    request: &'a Request,
    streams: &mut HashMap<&'a StreamId, Stream>,
    report: &mut HistoryReport,
) {
    for attempt in &request.attempts {
        let Some((ended, Outcome::Conflict(name, actual))) = &attempt.ended else {
            continue;
        };
        let Some(part) = request.parts.iter().find(|part| part.stream == *name) else {
            continue;
        };
        let length = actual.map_or(0, |actual| actual.next().0);
        let holds = match part.expected {
            ExpectedRevision::Any => true,
            ExpectedRevision::NoStream => length == 0,
            ExpectedRevision::StreamExists => length > 0,
            ExpectedRevision::Exact(revision) => *actual == Some(revision),
        };
        let what = format!("refused at {length} events");
        let stream = streams.entry(&part.stream).or_default();
        if holds || length > stream.ids.len() as u64 {
            report.violations.push(Violation::Untrue {
                stream: part.stream.clone(),
                detail: format!("{what}, expected {}", part.expected),
            });
        }
        stream.facts.push(Fact {
            began: attempt.began,
            ended: *ended,
            before: length,
            after: length,
            what,
        });
    }
}

/// Finds what was asked after an answer and does not include it, and what would be true in the middle of an append
/// only.
fn check_stream(name: &StreamId, facts: Vec<Fact>, report: &mut HistoryReport) {
    let is_append = |fact: &&Fact| fact.before < fact.after;
    let mut appends: Vec<&Fact> = facts.iter().filter(is_append).collect();
    appends.sort_by_key(|append| append.before);
    for fact in facts.iter().filter(|fact| !is_append(fact)) {
        let begun = appends.partition_point(|append| append.before < fact.before);
        let last = begun.checked_sub(1).map(|last| appends[last]);
        if last.is_some_and(|last| fact.before < last.after) {
            report.violations.push(Violation::Untrue {
                stream: name.clone(),
                detail: format!("{}, in the middle of an append", fact.what),
            });
        }
    }
    let mut by_end: Vec<&Fact> = facts.iter().collect();
    by_end.sort_by_key(|fact| fact.ended);
    let mut by_begin: Vec<&Fact> = facts.iter().collect();
    by_begin.sort_by_key(|fact| fact.began);
    let mut ended = by_end.into_iter().peekable();
    let mut latest: Option<&Fact> = None;
    for fact in by_begin {
        while let Some(earlier) = ended.next_if(|earlier| earlier.ended < fact.began) {
            if latest.is_none_or(|latest| earlier.after > latest.after) {
                latest = Some(earlier);
            }
        }
        if let Some(latest) = latest
            && latest.after > fact.before
        {
            report.violations.push(Violation::Stale {
                stream: name.clone(),
                detail: format!("{}, and later {}", latest.what, fact.what),
            });
        }
    }
}
