//! Fail-overs that lose commits: what was acknowledged may be lost only if the fail-over could not know of it, and what
//! is left must be whole.
//!
//! Who may lose what the caller says, since only it knows when which database failed over. Two rules are everybody's:
//! what is stored and was acknowledged elsewhere is no loss, unless a history came back that had been lost; and a run
//! that loses nothing has tested nothing, so the losses are counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gesta_core::{EventId, Incarnation, LogId, Position, RecordedEvent, StreamId};

use crate::history::Acknowledged;
use crate::verdict::{Kind, Verdict, Violation};

/// What a loss excuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excused {
    /// That an acknowledged event is not there.
    Absence,
    /// That it is not there, or elsewhere than answered: an earlier history, which came back, had stored an attempt
    /// that was in doubt.
    AbsenceAndPlace,
}

/// How much was lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Appends.
    pub appends: usize,
    /// Their events.
    pub events: usize,
}

/// Takes out of a verdict what a fail-over excuses: acknowledged appends of which `may_be_lost` says so. Gives how many
/// of them were lost.
pub fn excuse(
    verdict: &mut Verdict,
    acknowledged: &[Acknowledged],
    excused: Excused,
    may_be_lost: impl Fn(&StreamId, &Acknowledged) -> bool,
) -> Losses {
    let events = acknowledged.iter().enumerate();
    let of_event: HashMap<EventId, usize> = events
        .flat_map(|(number, append)| append.ids.iter().map(move |id| (*id, number)))
        .collect();
    let lost_append = |stream: &StreamId, id: &EventId| {
        let number = *of_event.get(id)?;
        may_be_lost(stream, &acknowledged[number]).then_some(number)
    };
    let (mut appends, mut losses) = (BTreeSet::new(), Losses::default());
    verdict.violations.retain(|violation| match violation {
        Violation::AcknowledgedLost { stream, id } => {
            let lost = lost_append(stream, id);
            losses.events += usize::from(lost.is_some());
            appends.extend(lost);
            lost.is_none()
        }
        Violation::WrongPlace { stream, id, .. } if excused == Excused::AbsenceAndPlace => {
            lost_append(stream, id).is_none()
        }
        _ => true,
    });
    losses.appends = appends.len();
    losses
}

/// Finds what was acknowledged in another history than those that there were.
pub fn check_histories(
    acknowledged: &[Acknowledged],
    histories: &[Incarnation],
    verdict: &mut Verdict,
) {
    for append in acknowledged {
        let known = append.checkpoint.incarnation;
        if !histories.contains(&known) {
            verdict.add(Kind::UnknownHistory, 1, || {
                format!("an append was acknowledged in {known:?}")
            });
        }
    }
}

/// Finds what is wrong with a store in itself, from which nothing was removed: holes, names, and ids that came twice.
/// Of events in streams of the store's own only the places count.
pub fn check_whole(
    stored: &[RecordedEvent],
    is_under_its_name: impl Fn(&RecordedEvent) -> bool,
    verdict: &mut Verdict,
) {
    let mut ids: HashSet<EventId> = HashSet::new();
    let mut ends: BTreeMap<LogId, Position> = BTreeMap::new();
    for event in stored {
        let (log, position) = (event.log, event.position);
        let end = ends.entry(log).or_default();
        if position != end.next() {
            verdict.add(Kind::PositionGap, 1, || {
                format!("position {position} of log {log} comes after {end}")
            });
        }
        *end = position;
        if event.stream.is_system() {
            continue;
        }
        if !is_under_its_name(event) {
            verdict.add(Kind::WrongName, 1, || format!("{event:?}"));
        }
        if !ids.insert(event.id) {
            verdict.violations.push(Violation::StoredTwice {
                stream: event.stream.clone(),
                id: event.id,
            });
        }
    }
}
