//! Tailers: is what a subscriber has seen the log, in order and without a gap?
//!
//! A tailer of a `RunHistory` must have seen, up to where it came, exactly what is stored in the end: so it is noticed
//! if something appears behind it. What a tailer was given in another way is judged by [`judge`], which also knows what
//! may become of one whose history was lost.
//! Not here: whether a tailer came to the end in time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gesta_core::{EventId, LogId, Position, RecordedEvent, Revision, StreamId, Timestamp, log_of};

use crate::history::{Seen, Tailer};
use crate::verdict::{Kind, Verdict, Violation};

/// An event, as every consumer can tell it from all others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Given {
    /// Its stream.
    pub stream: StreamId,
    /// Its number in the stream.
    pub revision: Revision,
    /// Its id.
    pub id: EventId,
    /// When it was stored: an event that was lost, and stored again when its append was repeated, is another one.
    pub created: Timestamp,
    /// Its place in its log, if the consumer's protocol shows that.
    pub position: Option<Position>,
}

impl Given {
    /// An event, without what a protocol may not show.
    #[must_use]
    pub fn without_position(event: &RecordedEvent) -> Self {
        Self {
            position: None,
            ..Self::from(event)
        }
    }
}

impl From<&RecordedEvent> for Given {
    fn from(event: &RecordedEvent) -> Self {
        Self {
            stream: event.stream.clone(),
            revision: event.revision,
            id: event.id,
            created: event.created,
            position: Some(event.position),
        }
    }
}

/// How much of what is stored a tailer must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    All,
    /// A beginning.
    Beginning,
    /// A beginning, and then perhaps events that were lost; it was told so. It must not have gone on to events that are
    /// stored after that, and the revisions of each stream must have grown. Whether anybody ever sent the lost events,
    /// who calls must find out.
    BeginningThenLost,
}

/// Judges what a tailer was given, which had to see all of `stored`, each log in its order, of so many logs.
#[must_use]
pub fn judge(
    tailer: &str,
    given: &[Given],
    stored: &[Given],
    logs: u16,
    extent: Extent,
) -> Verdict {
    let mut verdict = Verdict {
        events_tailed: given.len(),
        ..Verdict::default()
    };
    let (given, stored) = (by_log(given, logs), by_log(stored, logs));
    let all: BTreeSet<&LogId> = given.keys().chain(stored.keys()).collect();
    let nothing = Vec::new();
    for log in all {
        let [given, stored] = [&given, &stored].map(|all| all.get(log).unwrap_or(&nothing));
        let same = given.iter().zip(stored).take_while(|(a, b)| a == b).count();
        let (more, left) = (&given[same..], &stored[same..]);
        if extent == Extent::BeginningThenLost {
            let later: HashSet<_> = left.iter().collect();
            if let Some(silent) = more.iter().find(|one| later.contains(one)) {
                verdict.add(Kind::WentOnSilently, 1, || {
                    format!(
                        "{tailer}: log {log}: after {same} stored events of {} it got others, and then {silent:?}",
                        stored.len()
                    )
                });
            } else if let Some(back) = first_that_goes_back(given) {
                verdict.add(Kind::TailerOrder, 1, || {
                    format!(
                        "{tailer}: log {log}: it got {back:?} after an event of the stream that is not before it"
                    )
                });
            }
        } else if !more.is_empty() || extent == Extent::All && !left.is_empty() {
            verdict.add(Kind::TailerDiffers, 1, || {
                format!(
                    "{tailer}: log {log}: after {same} stored events, of {}, it got {:?}, of {}, and is stored {:?}",
                    stored.len(),
                    more.first(),
                    given.len(),
                    left.first()
                )
            });
        }
        for pair in given.windows(2) {
            if let (Some(one), Some(two)) = (pair[0].position, pair[1].position)
                && two <= one
            {
                verdict.violations.push(Violation::TailerOrder {
                    tailer: tailer.into(),
                    log: *log,
                    position: two,
                });
            }
        }
    }
    verdict
}

/// Returns the first event whose revision is not greater than the one before it in its stream: whatever was lost, a
/// stream only grows within one history.
fn first_that_goes_back<'a>(given: &[&'a Given]) -> Option<&'a Given> {
    let mut ends: HashMap<&StreamId, Revision> = HashMap::new();
    let mut given = given.iter().copied();
    given.find(|one| {
        let before = ends.insert(&one.stream, one.revision);
        before.is_some_and(|before| one.revision <= before)
    })
}

/// Judges the positions of what a tailer was given of one log from which nothing is removed: there is no hole.
pub fn check_holes(tailer: &str, given: &[Given], verdict: &mut Verdict) {
    for pair in given.windows(2) {
        if let (Some(one), Some(two)) = (pair[0].position, pair[1].position)
            && two != one.next()
        {
            verdict.add(Kind::PositionGap, 1, || {
                format!("{tailer} got position {two} after {one}")
            });
        }
    }
}

/// By log: only there is an order that all tailers see.
fn by_log(given: &[Given], logs: u16) -> BTreeMap<LogId, Vec<&Given>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for one in given {
        all.entry(log_of(&one.stream, logs)).or_default().push(one);
    }
    all
}

/// Checks that a tailer has seen strictly growing positions, and of its range exactly what is stored in the end.
pub(super) fn check(tailer: &Tailer, wanted: &[usize], events: &[Seen], report: &mut Verdict) {
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
