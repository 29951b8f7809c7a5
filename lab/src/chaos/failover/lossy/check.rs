//! What must be so after commits were lost. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use gesta_core::{Error, ErrorKind, EventId, Incarnation, Position, RecordedEvent};
use gesta_kit::history::{HistoryReport, Violation};
use gesta_load::entities::tally::{Event, decoded};

use crate::faults::record::Acknowledged;

/// Most findings of one kind that are told.
const TOLD_MAX: usize = 5;

/// What a consumer was given, and how it ended.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) events: Vec<RecordedEvent>,
    pub(super) end: Option<Error>,
}

/// The history that was lost in part, and the one that followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Histories {
    pub(super) old: Incarnation,
    pub(super) new: Incarnation,
}

/// The consumer was told that the history is another one, and was given no hole, nothing under another name, and
/// nothing of the new history after something that was lost.
pub(super) fn consumer(seen: &Seen, stored: &[RecordedEvent]) -> Vec<String> {
    // By place: an append in doubt is sent again, and its event may be stored once in each history.
    let place = |event: &RecordedEvent| (event.position, event.id);
    let stored: HashSet<(Position, EventId)> = stored.iter().map(place).collect();
    let is_lost = |event: &RecordedEvent| !stored.contains(&place(event));
    let mut wrong = Vec::new();
    for event in seen.events.iter().filter(|event| !is_under_its_name(event)) {
        wrong.push(format!("was given another's name: {event:?}"));
    }
    for pair in seen.events.windows(2) {
        if pair[1].position != pair[0].position.next() {
            let [first, second] = [pair[0].position, pair[1].position];
            wrong.push(format!("was given {second} after {first}"));
        }
        if is_lost(&pair[0]) && !is_lost(&pair[1]) {
            let second = pair[1].position;
            wrong.push(format!(
                "went on silently: {second} is stored, and the one before is lost"
            ));
        }
    }
    if !seen.end.as_ref().is_some_and(is_other_history) {
        let lost = seen.events.iter().filter(|event| is_lost(event)).count();
        let end = &seen.end;
        wrong.push(format!(
            "was given {lost} events that were lost, and was not told: {end:?}"
        ));
    }
    wrong.truncate(TOLD_MAX);
    wrong
}

/// True if this says that the history is another one.
pub(super) fn is_other_history(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidCheckpoint(_))
}

/// What the checker of the history has found and the fail-over does not excuse: an append is lost rightly if it was
/// acknowledged in the old history, and begun before all knew of the new one. Gives how many were lost so, and what is
/// wrong.
pub(super) fn acknowledged(
    all: &[Acknowledged],
    verdict: &HistoryReport,
    histories: Histories,
    settled: Option<Instant>,
) -> (u64, Vec<String>) {
    let (mut lost, mut wrong, mut of_event) = (BTreeSet::new(), Vec::new(), HashMap::new());
    for (number, append) in all.iter().enumerate() {
        let known = append.checkpoint.incarnation;
        if ![histories.old, histories.new].contains(&known) {
            wrong.push(format!("acknowledged in an unknown history {known:?}"));
        }
        let is_excused =
            known == histories.old && settled.is_none_or(|settled| append.begun < settled);
        let ids = append.ids.iter();
        of_event.extend(ids.map(|id| (*id, (number, is_excused))));
    }
    for violation in &verdict.violations {
        match violation {
            Violation::AcknowledgedLost { id, .. } if of_event.get(id).is_some_and(|of| of.1) => {
                lost.insert(of_event[id].0);
            }
            _ => wrong.push(violation.to_string()),
        }
    }
    if lost.is_empty() {
        wrong.push("nothing was lost: the round has tested nothing".into());
    }
    wrong.truncate(TOLD_MAX);
    (lost.len() as u64, wrong)
}

/// What is wrong in the whole store: names, holes, ids that several streams have. A log has no holes here, for nothing
/// is scavenged.
pub(super) fn whole(stored: &[RecordedEvent]) -> Vec<String> {
    let mut ids: HashSet<EventId> = HashSet::new();
    let wrong = (1..).zip(stored).filter(|(position, event)| {
        !is_under_its_name(event) || event.position != Position(*position) || !ids.insert(event.id)
    });
    wrong
        .map(|(position, event)| {
            format!("{position}: a wrong name or place, or a double: {event:?}")
        })
        .take(TOLD_MAX)
        .collect()
}

/// True if the event stands in the stream that its data name; those of entities name the entity.
fn is_under_its_name(event: &RecordedEvent) -> bool {
    is_named(event.stream.as_str(), &event.data)
}

/// See [`is_under_its_name`].
pub(in crate::chaos::failover) fn is_named(stream: &str, data: &[u8]) -> bool {
    if let Some(entity) = stream.strip_prefix("tally-") {
        return decoded(data).is_ok_and(|Event::Counted { by, .. }| entity == by.to_string());
    }
    let named = serde_json::from_slice::<serde_json::Value>(data);
    named.is_ok_and(|data| data["stream"] == stream)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gesta_core::{
        Checkpoint, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, ReadAll,
    };
    use gesta_memory::MemoryStore;

    use super::*;

    /// A store with one event in each of these streams, whose data name these.
    async fn stored(streams: &[(&str, &str)]) -> (MemoryStore, Vec<RecordedEvent>) {
        let store = MemoryStore::new();
        for (stream, named) in streams {
            let event_type = EventType::new("tested").unwrap();
            let event = EventData::json(event_type, format!("{{\"stream\":\"{named}\"}}"));
            let any = ExpectedRevision::Any;
            store.append_to(*stream, any, vec![event]).await.unwrap();
        }
        let events = store.read_all(ReadAll::forwards()).await.unwrap().events;
        (store, events)
    }

    fn told(events: &[RecordedEvent]) -> Seen {
        Seen {
            events: events.to_vec(),
            end: Some(ErrorKind::InvalidCheckpoint("another history".into()).into()),
        }
    }

    #[tokio::test]
    async fn consumers_that_were_told_pass_and_silent_mixtures_do_not() {
        let (_, old) = stored(&[("a", "a"), ("b", "b"), ("a", "a")]).await;
        let (_, new) = stored(&[("a", "a"), ("c", "c"), ("c", "c")]).await;
        let now = [&old[..1], &new[1..]].concat();
        assert_eq!(consumer(&told(&old), &now), [""; 0]);
        assert_eq!(consumer(&told(&now), &now), [""; 0]);
        let mixed = [&old[..2], &new[2..]].concat();
        let found = consumer(&told(&mixed), &now);
        assert!(found[0].contains("went on silently"), "{found:?}");
        let hole = [&old[..1], &old[2..]].concat();
        let found = consumer(&told(&hole), &now);
        assert!(found[0].contains("3 after 1"), "{found:?}");
        // An event in doubt that was sent again: it ends the old history, and stands elsewhere in the new one.
        let mut moved = old[2].clone();
        moved.position = Position(2);
        assert_eq!(consumer(&told(&old), &[old[0].clone(), moved]), [""; 0]);
        let untold = Seen {
            end: Some(Error::unavailable("away")),
            ..told(&old)
        };
        let found = consumer(&untold, &now);
        assert!(found[0].contains("given 2 events"), "{found:?}");
    }

    #[tokio::test]
    async fn names_and_places_are_compared() {
        let (_, events) = stored(&[("a", "a"), ("b", "b")]).await;
        assert_eq!(whole(&events), [""; 0]);
        let (_, events) = stored(&[("a", "a"), ("b", "a")]).await;
        assert_eq!(whole(&events).len(), 1);
        let (_, events) = stored(&[("a", "a"), ("b", "b")]).await;
        assert_eq!(whole(&events[1..]).len(), 1);
    }

    #[tokio::test]
    async fn what_was_acknowledged_in_the_new_history_must_be_there() {
        let (store, events) = stored(&[("a", "a"), ("b", "b")]).await;
        let end = store.read_all(ReadAll::forwards()).await.unwrap().next;
        let other = MemoryStore::new().info().await.unwrap();
        let histories = Histories {
            old: other.incarnation,
            new: end.incarnation,
        };
        let (old, new) = (histories.old, histories.new);
        let (begun, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let one = |event: &RecordedEvent, incarnation, begun| Acknowledged {
            ids: vec![event.id],
            begun,
            answered: begun,
            checkpoint: Checkpoint {
                incarnation,
                ..end.clone()
            },
        };
        let lost = |events: &[RecordedEvent]| HistoryReport {
            violations: events
                .iter()
                .map(|event| Violation::AcknowledgedLost {
                    stream: event.stream.clone(),
                    id: event.id,
                })
                .collect(),
            ..HistoryReport::default()
        };
        let check = |all: &[Acknowledged], verdict| {
            acknowledged(
                all,
                &verdict,
                histories,
                Some(begun + Duration::from_millis(1)),
            )
        };
        let answered = [one(&events[0], new, begun), one(&events[1], old, begun)];
        assert_eq!(check(&answered, lost(&events[1..])), (1, vec![]));
        let (_, wrong) = check(&answered, lost(&[]));
        assert!(wrong[0].contains("tested nothing"), "{wrong:?}");
        // Lost in the new history, or begun when all knew of it.
        for (incarnation, begun) in [(new, begun), (old, later)] {
            let earlier = answered[0].begun;
            let answered = [
                one(&events[0], old, earlier),
                one(&events[1], incarnation, begun),
            ];
            let (lost, wrong) = check(&answered, lost(&events));
            assert_eq!((lost, wrong.len()), (1, 1), "{wrong:?}");
        }
    }
}
