//! What must be so when a stretch is over, as far as only this load can tell: under which name an event must stand,
//! what a consumer wants, and what a fail-over may lose. The rest say the judges of the kit (`tails`, `losses`,
//! `groups`).

use std::collections::HashSet;
use std::time::Instant;

use gesta_core::{Incarnation, LogId, RecordedEvent, StreamId, log_of};
use gesta_kit::history::Acknowledged;
use gesta_kit::judge::losses::{self, Excused};
use gesta_kit::judge::tails::Given;
use gesta_kit::verdict::{Verdict, Violation};
use gesta_load::entities::tally::{Event, decoded};

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
            Wanted::All => !event.stream.is_system(),
            Wanted::Stream(stream) => event.stream == *stream,
        });
        events.map(Given::without_position).collect()
    }

    /// The logs that another one, who has read later, has read differently. Logs take turns in any order.
    pub(super) fn read_differently(&self, later: &Self) -> Vec<LogId> {
        let of = |stored: &Self, log| -> Vec<RecordedEvent> {
            let events = stored.events.iter().filter(|event| event.log == log);
            events.cloned().collect()
        };
        let logs = (0..self.logs).map(LogId);
        logs.filter(|log| !of(later, *log).starts_with(&of(self, *log)))
            .collect()
    }

    /// The streams that were appended to last, but for the store's own; so many at most.
    pub(super) fn newest_streams(&self, most: usize) -> Vec<&StreamId> {
        let (mut seen, newest) = (HashSet::new(), self.events.iter().rev());
        let streams = newest.map(|event| &event.stream);
        let own = streams.filter(|stream| !stream.is_system() && seen.insert(*stream));
        own.take(most).collect()
    }

    /// What is wrong in itself: names, holes, ids that came twice. Nothing is scavenged.
    pub(super) fn whole(&self) -> Vec<String> {
        let is_under_its_name =
            |event: &RecordedEvent| is_named(event.stream.as_str(), &event.data);
        let mut verdict = Verdict::default();
        losses::check_whole(&self.events, is_under_its_name, &mut verdict);
        verdict.findings()
    }
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
    /// What it excuses.
    pub(super) excused: Excused,
}

/// What the checker of the history has found and the fail-over does not excuse: an append is lost rightly if it was
/// begun before the new primary of its log took writes, and acknowledged in another history than the present one. Gives
/// how many events were lost so, and what is wrong.
pub(super) fn acknowledged(
    all: &[Acknowledged],
    verdict: &Verdict,
    failed_over: &FailedOver<'_>,
) -> (u64, Vec<String>) {
    let promoted = |stream: &StreamId| (failed_over.promoted)(log_of(stream, failed_over.logs));
    let may_be_lost = |stream: &StreamId, append: &Acknowledged| {
        append.checkpoint.incarnation != failed_over.now
            && promoted(stream).is_some_and(|at| append.begun < at)
    };
    let mut left = verdict.clone();
    let losses = losses::excuse(&mut left, all, failed_over.excused, may_be_lost);
    let mut wrong: Vec<String> = left
        .violations
        .iter()
        .map(|violation| match violation {
            Violation::AcknowledgedLost { stream, id } => {
                let log = log_of(stream, failed_over.logs);
                let append = all.iter().find(|append| append.ids.contains(id));
                let why = append.map(|append| {
                    let at = promoted(stream);
                    let before = at.map(|at| at.saturating_duration_since(append.begun));
                    let known = &append.checkpoint;
                    format!("in {known}, begun {before:?} before the promotion")
                });
                let why = why.unwrap_or_default();
                format!("{violation} of log {log}, acknowledged {why}")
            }
            _ => violation.to_string(),
        })
        .collect();
    if losses.events == 0 {
        wrong.push("nothing was lost: the round has tested nothing".into());
    }
    wrong.truncate(TOLD_MAX);
    (losses.events as u64, wrong)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gesta_core::{Checkpoint, EventId, Place};

    use super::*;

    #[test]
    fn only_what_was_begun_before_and_lay_there_may_be_lost() {
        let (old, new) = (Incarnation::random(), Incarnation::random());
        let (begun, at) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let of = |incarnation, begun| Acknowledged {
            client: 0,
            ids: vec![EventId(uuid::Uuid::from_u128(1))],
            begun,
            answered: begun,
            checkpoint: Checkpoint {
                incarnation,
                place: Place::Logs(vec![]),
            },
        };
        let verdict = Verdict {
            violations: vec![Violation::AcknowledgedLost {
                stream: StreamId::new("a").unwrap(),
                id: EventId(uuid::Uuid::from_u128(1)),
            }],
            ..Verdict::default()
        };
        let check = |append, is_there: bool| {
            let failed_over = FailedOver {
                now: new,
                promoted: &|_| is_there.then_some(at),
                logs: 1,
                excused: Excused::Absence,
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
