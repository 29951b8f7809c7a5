//! What must be so after commits were lost. Pure.

use std::collections::{HashMap, HashSet};

use gesta_core::{
    Checkpoint, Error, ErrorKind, EventId, Incarnation, Position, RecordedEvent, Revision, StreamId,
};

use crate::entities::tally::{Event, decoded};

/// Most findings of one kind that are told.
const TOLD_MAX: usize = 5;

/// An append that was answered.
#[derive(Debug)]
pub(super) struct Acknowledged {
    pub(super) stream: String,
    pub(super) id: EventId,
    pub(super) revision: Revision,
    pub(super) position: Position,
    pub(super) checkpoint: Checkpoint,
    /// It was sent when all knew of the new history.
    pub(super) settled: bool,
}

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
    if !is_told(seen) {
        let lost = seen.events.iter().filter(|event| is_lost(event)).count();
        let end = &seen.end;
        wrong.push(format!(
            "was given {lost} events that were lost, and was not told: {end:?}"
        ));
    }
    wrong.truncate(TOLD_MAX);
    wrong
}

/// True if the consumer ended with *invalid checkpoint*.
pub(super) fn is_told(seen: &Seen) -> bool {
    let is = |error: &Error| matches!(error.kind(), ErrorKind::InvalidCheckpoint(_));
    seen.end.as_ref().is_some_and(is)
}

/// Every event that was acknowledged in the new history is where its answer says. Gives how many others were lost, and
/// what is wrong.
pub(super) fn acknowledged(
    all: &[Acknowledged],
    stored: &[RecordedEvent],
    histories: Histories,
) -> (u64, Vec<String>) {
    let by_id: HashMap<EventId, &RecordedEvent> =
        stored.iter().map(|event| (event.id, event)).collect();
    let (mut lost, mut wrong) = (0, Vec::new());
    for one in all {
        let told = (one.stream.as_str(), one.revision, one.position);
        let incarnation = one.checkpoint.incarnation;
        let found = by_id.get(&one.id);
        let found = found.map(|event| (event.stream.as_str(), event.revision, event.position));
        match found {
            Some(found) if found == told => {}
            Some(found) => wrong.push(format!("{told:?} is stored at {found:?}")),
            None if one.settled || incarnation == histories.new => {
                wrong.push(format!(
                    "acknowledged in the new history, and lost: {told:?}"
                ));
            }
            None if incarnation != histories.old => {
                wrong.push(format!(
                    "acknowledged in an unknown history {incarnation:?}"
                ));
            }
            None => lost += 1,
        }
    }
    if lost == 0 {
        wrong.push("nothing was lost: the round has tested nothing".into());
    }
    wrong.truncate(TOLD_MAX);
    (lost, wrong)
}

/// What is wrong in the whole store: names, holes, doubles. A log has no holes here, for nothing is scavenged.
pub(super) fn whole(stored: &[RecordedEvent]) -> Vec<String> {
    let mut next: HashMap<&StreamId, u64> = HashMap::new();
    let (mut ids, mut wrong) = (HashSet::new(), Vec::new());
    for (event, position) in stored.iter().zip(1..) {
        let next = next.entry(&event.stream).or_default();
        if !is_under_its_name(event)
            || event.position != Position(position)
            || event.revision != Revision(*next)
            || !ids.insert(event.id)
        {
            wrong.push(format!(
                "{position}: a wrong name or place, or a double: {event:?}"
            ));
        }
        *next += 1;
    }
    wrong.truncate(TOLD_MAX);
    wrong
}

/// True if the event stands in the stream that its data name; those of entities name the entity.
fn is_under_its_name(event: &RecordedEvent) -> bool {
    let stream = event.stream.as_str();
    if let Some(entity) = stream.strip_prefix("tally-") {
        return decoded(&event.data)
            .is_ok_and(|Event::Counted { by, .. }| entity == by.to_string());
    }
    let named = serde_json::from_slice::<serde_json::Value>(&event.data);
    named.is_ok_and(|data| data["stream"] == stream)
}

#[cfg(test)]
mod tests {
    use gesta_core::{EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, ReadAll};
    use gesta_memory::MemoryStore;

    use super::*;

    /// A store with one event in each of these streams, whose data name these.
    async fn stored(streams: &[(&str, &str)]) -> (MemoryStore, Vec<RecordedEvent>) {
        let store = MemoryStore::new();
        for (stream, named) in streams {
            let event_type = EventType::new("tested").unwrap();
            let event = EventData::json(event_type, format!("{{\"stream\":\"{named}\"}}"));
            let any = ExpectedRevision::Any;
            store.append_to(stream, any, vec![event]).await.unwrap();
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
        let info = store.info().await.unwrap();
        let other = MemoryStore::new().info().await.unwrap();
        let histories = Histories {
            old: other.incarnation,
            new: info.incarnation,
        };
        let end = store.read_all(ReadAll::forwards()).await.unwrap().next;
        let one = |event: &RecordedEvent, incarnation: Incarnation| Acknowledged {
            stream: event.stream.to_string(),
            id: event.id,
            revision: event.revision,
            position: event.position,
            checkpoint: Checkpoint {
                incarnation,
                ..end.clone()
            },
            settled: false,
        };
        let (old, new) = (histories.old, histories.new);
        let answered = [one(&events[0], new), one(&events[1], old)];
        let (lost, wrong) = acknowledged(&answered, &events[..1], histories);
        assert_eq!((lost, wrong.as_slice()), (1, &[][..]));
        let (lost, wrong) = acknowledged(&answered, &events, histories);
        assert_eq!(lost, 0);
        assert!(wrong[0].contains("tested nothing"), "{wrong:?}");
        let answered = [one(&events[0], old), one(&events[1], new)];
        let (lost, wrong) = acknowledged(&answered, &[], histories);
        assert_eq!((lost, wrong.len()), (1, 1));
    }
}
