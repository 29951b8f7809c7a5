//! What must be so when a stretch is over. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use gesta_core::{
    EventId, Incarnation, LogId, Position, RecordedEvent, StreamId, Timestamp, log_of,
};
use gesta_kit::history::{HistoryReport, Violation};

use gesta_load::entities::tally::{Event, decoded};

use crate::load::appends::record::Acknowledged;

/// Most findings of one kind that are told.
const TOLD_MAX: usize = 5;

/// True if the data of an event name its stream; those of entities name the entity.
pub(crate) fn is_named(stream: &str, data: &[u8]) -> bool {
    if let Some(entity) = stream.strip_prefix("tally-") {
        return decoded(data).is_ok_and(|Event::Counted { by, .. }| entity == by.to_string());
    }
    let named = serde_json::from_slice::<serde_json::Value>(data);
    named.is_ok_and(|data| data["stream"] == stream)
}

/// Which events a consumer wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All but those of the store's own streams.
    All,
    /// Those of a stream.
    Stream(StreamId),
}

/// An event, as every consumer can tell it from all others: a position would not do, for each protocol shows its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Given {
    pub(super) stream: StreamId,
    pub(super) revision: u64,
    pub(super) id: EventId,
    /// When it was stored: an event that was lost, and stored again when its append was repeated, is another one.
    pub(super) created: Timestamp,
}

impl Given {
    pub(super) fn of(event: &RecordedEvent) -> Self {
        Self {
            stream: event.stream.clone(),
            revision: event.revision.0,
            id: event.id,
            created: event.created,
        }
    }

    /// True for a stream that the store or a group keeps for itself.
    pub(super) fn is_of_the_store(&self) -> bool {
        self.stream.as_str().starts_with('$')
    }
}

/// What is stored in the end.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(super) events: Vec<RecordedEvent>,
    pub(super) logs: u16,
}

impl Stored {
    /// What a consumer must have been given, in order.
    pub(super) fn wanted(&self, wanted: &Wanted) -> Vec<Given> {
        let events = self.events.iter().filter(|event| match wanted {
            Wanted::All => !event.stream.as_str().starts_with('$'),
            Wanted::Stream(stream) => event.stream == *stream,
        });
        events.map(Given::of).collect()
    }

    /// What is wrong in itself: names, holes, ids that came twice. Nothing is scavenged.
    pub(super) fn whole(&self) -> Vec<String> {
        let mut ids: HashSet<EventId> = HashSet::new();
        let mut next: BTreeMap<LogId, u64> = BTreeMap::new();
        let wrong = self.events.iter().filter(|event| {
            let next = next.entry(event.log).or_insert(1);
            let is_next = event.position == Position(*next);
            *next = event.position.0 + 1;
            let of_store = Given::of(event).is_of_the_store();
            !is_next
                || !(of_store || is_named(event.stream.as_str(), &event.data))
                || !(of_store || ids.insert(event.id))
        });
        let wrong = wrong.map(|event| format!("a wrong name or place, or a double: {event:?}"));
        wrong.take(TOLD_MAX).collect()
    }
}

/// By log: only there is an order that all consumers see.
fn by_log(given: &[Given], logs: u16) -> BTreeMap<LogId, Vec<&Given>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for one in given {
        all.entry(log_of(&one.stream, logs)).or_default().push(one);
    }
    all
}

/// A subscriber that was not told anything has every stored event that it wants, once and in order, and no other.
pub(super) fn not_told(given: &[Given], stored: &[Given], logs: u16) -> Vec<String> {
    let (given, stored) = (by_log(given, logs), by_log(stored, logs));
    let logs: HashSet<&LogId> = given.keys().chain(stored.keys()).collect();
    let nothing = Vec::new();
    let mut wrong = Vec::new();
    for log in logs {
        let [given, stored] = [&given, &stored].map(|all| all.get(log).unwrap_or(&nothing));
        if given != stored {
            let same = given.iter().zip(stored).take_while(|(a, b)| a == b).count();
            wrong.push(format!(
                "log {}: after {same} stored events, of {}, it was given {:?}, of {}, and is stored {:?}",
                log.0,
                stored.len(),
                given.get(same),
                given.len(),
                stored.get(same)
            ));
        }
    }
    wrong
}

/// A subscriber that was told has a beginning of what is stored, and after it only what was lost.
pub(super) fn told(given: &[Given], stored: &[Given], logs: u16) -> Vec<String> {
    let (given, stored) = (by_log(given, logs), by_log(stored, logs));
    let nothing = Vec::new();
    let mut wrong = Vec::new();
    for (log, given) in &given {
        let stored = stored.get(log).unwrap_or(&nothing);
        let same = given.iter().zip(stored).take_while(|(a, b)| a == b).count();
        let later: HashSet<_> = stored[same..].iter().collect();
        if let Some(silent) = given[same..].iter().find(|one| later.contains(one)) {
            wrong.push(format!(
                "log {}: went on silently: after {same} stored events of {} it was given others, and then {silent:?}",
                log.0,
                stored.len()
            ));
        }
    }
    wrong
}

/// What of this neither a consumer of a group has finished nor the group has parked.
pub(super) fn unsettled(
    stored: &[Given],
    finished: &HashSet<Given>,
    parked: &HashSet<String>,
) -> Vec<Given> {
    let open = stored.iter().filter(|one| {
        !finished.contains(one) && !parked.contains(&format!("{}@{}", one.revision, one.stream))
    });
    open.cloned().collect()
}

/// What is known of a round's fail-over.
pub(super) struct FailedOver<'a> {
    /// The history that there is in the end.
    pub(super) now: Incarnation,
    /// When the last new primary of the database in which a log lies took writes: what was begun later is not lost.
    /// None if that database did not fail over. Several databases do so one after the other, and each time a new
    /// history begins, so what was acknowledged between may be lost with the next one.
    pub(super) promoted: &'a dyn Fn(LogId) -> Option<Instant>,
    pub(super) logs: u16,
}

/// What the checker of the history has found and the fail-over does not excuse: an append is lost rightly if it was
/// begun before the new primary of its log took writes, and acknowledged in another history than the present one. Gives
/// how many events were lost so, and what is wrong.
pub(super) fn acknowledged(
    all: &[Acknowledged],
    verdict: &HistoryReport,
    failed_over: &FailedOver<'_>,
) -> (u64, Vec<String>) {
    let given = all
        .iter()
        .flat_map(|append| append.ids.iter().map(move |id| (*id, append)));
    let given: HashMap<EventId, &Acknowledged> = given.collect();
    let is_excused = |stream: &StreamId, id: &EventId| {
        let promoted = (failed_over.promoted)(log_of(stream, failed_over.logs));
        let append = given.get(id);
        append.is_some_and(|append| {
            append.checkpoint.incarnation != failed_over.now
                && promoted.is_some_and(|at| append.begun < at)
        })
    };
    let (mut lost, mut wrong) = (0, Vec::new());
    for violation in &verdict.violations {
        match violation {
            Violation::AcknowledgedLost { stream, id } if is_excused(stream, id) => lost += 1,
            // A lost history had the answer; an earlier one, which came back, had stored an attempt that was in doubt.
            Violation::WrongPlace { stream, id, .. } if is_excused(stream, id) => {}
            Violation::AcknowledgedLost { stream, id } => {
                let log = log_of(stream, failed_over.logs);
                let promoted = (failed_over.promoted)(log);
                let told = given.get(id).map(|append| {
                    let before = promoted.map(|at| at.saturating_duration_since(append.begun));
                    format!(
                        "in {}, begun {before:?} before the promotion",
                        append.checkpoint
                    )
                });
                let told = told.unwrap_or_default();
                wrong.push(format!("{violation} of log {log}, acknowledged {told}"));
            }
            _ => wrong.push(violation.to_string()),
        }
    }
    if lost == 0 {
        wrong.push("nothing was lost: the round has tested nothing".into());
    }
    wrong.truncate(TOLD_MAX);
    (lost, wrong)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gesta_core::{Checkpoint, Place};

    use super::*;

    fn given(names: &[(&str, u64, u128)]) -> Vec<Given> {
        let one = |(stream, revision, id): &(&str, u64, u128)| Given {
            stream: StreamId::new(*stream).unwrap(),
            revision: *revision,
            id: EventId(uuid::Uuid::from_u128(*id)),
            created: Timestamp::default(),
        };
        names.iter().map(one).collect()
    }

    /// The same events as they were stored an hour earlier.
    fn lost_copies(stored: &[Given]) -> Vec<Given> {
        let earlier = |one: &Given| Given {
            created: Timestamp(one.created.0 - 3_600_000_000),
            ..one.clone()
        };
        stored.iter().map(earlier).collect()
    }

    #[test]
    fn a_subscriber_that_was_not_told_has_everything_in_order() {
        let stored = given(&[("a", 0, 1), ("b", 0, 2), ("a", 1, 3)]);
        assert_eq!(not_told(&stored, &stored, 1), [""; 0]);
        for wrong in [
            given(&[("a", 0, 1), ("b", 0, 2)]),
            given(&[("a", 0, 1), ("a", 1, 3), ("b", 0, 2)]),
            given(&[("a", 0, 1), ("b", 0, 9), ("a", 1, 3)]),
            given(&[("a", 0, 1), ("b", 0, 2), ("a", 1, 3), ("a", 2, 4)]),
        ] {
            assert_eq!(not_told(&wrong, &stored, 1).len(), 1, "{wrong:?}");
        }
    }

    #[test]
    fn a_subscriber_that_was_told_has_a_beginning_and_then_what_was_lost() {
        let stored = given(&[("a", 0, 1), ("b", 0, 2), ("a", 1, 3)]);
        for right in [
            given(&[]),
            given(&[("a", 0, 1)]),
            stored.clone(),
            given(&[("a", 0, 1), ("a", 1, 9), ("c", 0, 8)]),
            // The append of the last one was repeated after the loss.
            [
                given(&[("a", 0, 1), ("b", 0, 9)]),
                lost_copies(&stored[2..]),
            ]
            .concat(),
        ] {
            assert_eq!(told(&right, &stored, 1), [""; 0], "{right:?}");
        }
        for wrong in [
            given(&[("a", 0, 1), ("b", 0, 9), ("a", 1, 3)]),
            given(&[("a", 0, 1), ("a", 1, 3)]),
        ] {
            assert_eq!(told(&wrong, &stored, 1).len(), 1, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_neither_finished_nor_parked_is_open() {
        let stored = given(&[("a", 0, 1), ("a", 1, 2), ("a", 2, 3)]);
        let finished = given(&[("a", 0, 1), ("a", 2, 9)]).into_iter().collect();
        let parked = HashSet::from(["1@a".to_owned()]);
        assert_eq!(unsettled(&stored, &finished, &parked), stored[2..]);
    }

    #[test]
    fn only_what_was_begun_before_and_lay_there_may_be_lost() {
        let (old, new) = (Incarnation::random(), Incarnation::random());
        let (begun, at) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let of = |incarnation, begun| Acknowledged {
            ids: vec![EventId(uuid::Uuid::from_u128(1))],
            begun,
            answered: begun,
            checkpoint: Checkpoint {
                incarnation,
                place: Place::Logs(vec![]),
            },
        };
        let verdict = HistoryReport {
            violations: vec![Violation::AcknowledgedLost {
                stream: StreamId::new("a").unwrap(),
                id: EventId(uuid::Uuid::from_u128(1)),
            }],
            ..HistoryReport::default()
        };
        let check = |append, is_there: bool| {
            let failed_over = FailedOver {
                now: new,
                promoted: &|_| is_there.then_some(at),
                logs: 1,
            };
            acknowledged(&[append], &verdict, &failed_over)
        };
        assert_eq!(check(of(old, begun), true), (1, vec![]));
        for (append, is_there) in [
            (of(old, begun), false),
            (of(new, begun), true),
            (of(old, at + Duration::from_secs(1)), true),
        ] {
            let (lost, wrong) = check(append, is_there);
            assert_eq!((lost, wrong.len()), (0, 2), "{wrong:?}");
        }
    }
}
