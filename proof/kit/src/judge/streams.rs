//! Do the answers about the streams of each log fit its order?
//!
//! Every answer tells how many events a stream had when it was true, and so between which positions the log had ended
//! then: a read or a refusal is true until the next event of its stream, an append leads from before its first event to
//! its last one. `order` says whether all of that fits. Answers about different streams of a log are held against each
//! other, so nobody sees a position before what stands at or before it.
//! Invariant: nothing may have been removed from the streams.

use std::collections::HashMap;

use gesta_core::{EventId, ExpectedRevision, LogId, Position, StreamId};

use super::appends::{StoredPlaces, was_refused};
use super::order::{Misfit, Places, Statement, Stretch, misfits};
use crate::history::{Outcome, Records, Request, Seen};
use crate::verdict::{Verdict, Violation};

/// What was said of the streams of a log, and in words.
#[derive(Default)]
struct Facts<'a> {
    statements: Vec<Statement<'static>>,
    words: Vec<(&'a StreamId, String)>,
}

/// What is stored of a stream, and what is known of it.
#[derive(Default)]
struct Stream {
    log: LogId,
    ids: Vec<EventId>,
    /// Where the log ended just before each event, and where just after: with all that was appended along with it.
    steps: Vec<(u64, u64)>,
    /// The lengths before and after appends.
    appends: Vec<(u64, u64)>,
}

/// What was said of the length of a stream.
struct Said<'a> {
    began: u64,
    ended: u64,
    stream: &'a StreamId,
    length: u64,
    what: String,
}

impl<'a> Facts<'a> {
    fn add(
        &mut self,
        stream: &'a StreamId,
        what: String,
        (began, ended): (u64, u64),
        places: Places<'static>,
    ) {
        self.words.push((stream, what));
        self.statements.push(Statement {
            began,
            ended,
            caller: None,
            places,
        });
    }

    /// Finds what does not fit.
    fn check(&self, verdict: &mut Verdict) {
        let told = |of: &StreamId, other: usize| match &self.words[other] {
            (stream, what) if *stream == of => what.clone(),
            (stream, what) => format!("{what} of {stream}"),
        };
        for (at, misfit) in misfits(&self.statements) {
            let (stream, what) = &self.words[at];
            let stream = (*stream).clone();
            verdict.violations.push(match misfit {
                Misfit::Never => Violation::Untrue {
                    detail: what.clone(),
                    stream,
                },
                Misfit::Early { change } => Violation::Stale {
                    detail: format!("{what}, and later {}", told(&stream, change)),
                    stream,
                },
                Misfit::Stale { known } | Misfit::Overtaken { earlier: known } => {
                    Violation::Stale {
                        detail: format!("{}, and later {what}", told(&stream, known)),
                        stream,
                    }
                }
            });
        }
    }
}

impl Stream {
    /// The positions at which the log ended while the stream had this length.
    fn ends_at(&self, length: u64) -> Stretch {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let last = length.min(self.steps.len()).checked_sub(1);
        (
            last.map_or(0, |last| self.steps[last].1),
            self.steps.get(length).map_or(u64::MAX, |next| next.0),
        )
    }

    /// Whether this length was only there in the middle of an append. The appends are sorted.
    fn is_within_append(&self, length: u64) -> bool {
        let begun = self.appends.partition_point(|(before, _)| *before < length);
        let last = begun.checked_sub(1).map(|last| self.appends[last]);
        last.is_some_and(|(_, after)| length < after)
    }
}

pub(super) fn check(
    records: &Records,
    stored: &[Seen],
    places: &StoredPlaces<'_>,
    report: &mut Verdict,
) {
    let wholes = wholes(records, places);
    let mut streams: HashMap<&StreamId, Stream> = HashMap::new();
    for event in stored {
        let stream = streams.entry(&event.stream).or_default();
        stream.log = event.log;
        stream.ids.push(event.id);
        let own = (event.position.0.saturating_sub(1), event.position.0);
        let step = wholes.get(&(event.log, event.position)).copied();
        stream.steps.push(step.unwrap_or(own));
    }
    let (mut facts, mut said): (HashMap<LogId, Facts<'_>>, Vec<Said<'_>>) = Default::default();
    for request in &records.requests {
        add_append(request, places, &mut streams, &mut facts, report);
        said.extend(conflicts(request, &mut streams, report));
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
        said.push(Said {
            began: look.began,
            ended: look.ended,
            stream: &look.stream,
            length: look.length,
            what,
        });
    }
    for stream in streams.values_mut() {
        stream.appends.sort_unstable();
    }
    for one in said {
        let stream = &streams[one.stream];
        if stream.is_within_append(one.length) {
            report.violations.push(Violation::Untrue {
                stream: one.stream.clone(),
                detail: format!("{}, in the middle of an append", one.what),
            });
        }
        let places = Places::During(stream.ends_at(one.length));
        let facts = facts.entry(stream.log).or_default();
        facts.add(one.stream, one.what, (one.began, one.ended), places);
    }
    for facts in facts.into_values() {
        facts.check(report);
    }
}

/// Where the log ended before and after each append to several streams, by the positions of its events. Those of an
/// append to one stream are told by the lengths of the stream.
fn wholes(records: &Records, places: &StoredPlaces<'_>) -> HashMap<(LogId, Position), (u64, u64)> {
    let mut wholes = HashMap::new();
    let several = |request: &&Request| request.parts.len() > 1;
    for request in records.requests.iter().filter(several) {
        let all = request.parts.iter().flat_map(|part| {
            let found = |id| places.get(&(&part.stream, id))?.first().copied();
            part.ids.iter().map(move |id| found(*id))
        });
        let Some(all) = all.collect::<Option<Vec<_>>>() else {
            continue;
        };
        let positions = || all.iter().map(|event| event.position);
        let (Some(first), Some(last)) = (positions().min(), positions().max()) else {
            continue;
        };
        let step = (first.0.saturating_sub(1), last.0);
        wholes.extend(all.iter().map(|event| ((event.log, event.position), step)));
    }
    wholes
}

/// An append that is stored, whoever knows of it: it took effect after the first attempt had begun that may have stored
/// it, and before its first answer.
fn add_append<'a>(
    request: &'a Request,
    places: &StoredPlaces<'_>,
    streams: &mut HashMap<&'a StreamId, Stream>,
    facts: &mut HashMap<LogId, Facts<'a>>,
    report: &mut Verdict,
) {
    let attempts = request.attempts.iter();
    let may_have_stored = attempts.clone().filter(|attempt| {
        !was_refused(attempt) && !matches!(attempt.ended, Some((_, Outcome::NotWritten)))
    });
    // What nobody may have stored, but is, is told of elsewhere.
    let Some(began) = may_have_stored.map(|attempt| attempt.began).min() else {
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
        let stream = streams.entry(&part.stream).or_default();
        let end = before + part.ids.len() as u64;
        stream.appends.push((before, end));
        let change = Places::Change {
            from: stream.ends_at(before).1,
            to: stream.ends_at(end).0,
        };
        let facts = facts.entry(stream.log).or_default();
        facts.add(&part.stream, what, (began, ended), change);
    }
}

/// Refusals tell how long a stream was.
fn conflicts<'a>(
    request: &'a Request,
    streams: &mut HashMap<&'a StreamId, Stream>,
    report: &mut Verdict,
) -> Vec<Said<'a>> {
    let mut said = Vec::new();
    for attempt in &request.attempts {
        let Some((ended, Outcome::Conflict(name, actual))) = &attempt.ended else {
            continue;
        };
        let Some(part) = request.parts.iter().find(|part| part.stream == *name) else {
            if !request.conditions.contains(name) {
                report.violations.push(Violation::Untrue {
                    stream: name.clone(),
                    detail: "refused an append that does not name this stream".to_owned(),
                });
            }
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
        said.push(Said {
            began: attempt.began,
            ended: *ended,
            stream: &part.stream,
            length,
            what,
        });
    }
    said
}
