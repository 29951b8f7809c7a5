//! The verdict: what is stored, against what writers were told and what tails received.

use std::collections::{HashMap, HashSet};

use gesta_core::{EventId, LogId, Position, RecordedEvent, Revision, StreamAppend, StreamId};
use serde::Serialize;

use super::record::{Answer, Operation};
use super::tails::Seen;

/// Most findings told in words.
const TOLD_MAX: usize = 50;

/// What was found. All but the first two and the last must be nought.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Verdict {
    /// Events stored.
    pub(crate) stored: u64,
    /// Events acknowledged.
    pub(crate) acknowledged: u64,
    /// Acknowledged events that are not stored.
    pub(crate) lost: u64,
    /// Events stored more than once in a stream.
    pub(crate) doubled: u64,
    /// Acknowledged events at another place than was answered.
    pub(crate) misplaced: u64,
    /// Events stored of an append that was refused or that nobody made.
    pub(crate) uninvited: u64,
    /// Appends stored in part.
    pub(crate) torn: u64,
    /// Places in streams where a revision is missing or out of order.
    pub(crate) gaps: u64,
    /// Places in logs where a position is not above the one before.
    pub(crate) disorder: u64,
    /// Events that a tail had passed before it could see them.
    pub(crate) late: u64,
    /// Events that a tail received and that are not stored there.
    pub(crate) phantom: u64,
    /// The first findings, in words.
    pub(crate) findings: Vec<String>,
}

impl Verdict {
    /// Number of things that must not be.
    pub(crate) fn faults(&self) -> u64 {
        self.lost
            + self.doubled
            + self.misplaced
            + self.uninvited
            + self.torn
            + self.gaps
            + self.disorder
            + self.late
            + self.phantom
    }

    fn find(&mut self, text: impl FnOnce() -> String) {
        if self.findings.len() < TOLD_MAX {
            self.findings.push(text());
        }
    }
}

/// Where an event is stored.
#[derive(Clone, Copy)]
struct Place {
    revision: Revision,
    position: Position,
}

/// Judges. `stored` is the whole store, log by log in order.
pub(crate) fn judge(
    stored: &[RecordedEvent],
    operations: &[Operation],
    tails: &[(String, Vec<Seen>)],
) -> Verdict {
    let mut verdict = Verdict {
        stored: stored.len() as u64,
        ..Verdict::default()
    };
    let places = order(&mut verdict, stored);
    let mut known = HashSet::new();
    for operation in operations {
        judge_operation(&mut verdict, &places, operation, &mut known);
    }
    for event in stored {
        if !known.contains(&event.id) {
            verdict.uninvited += 1;
            verdict.find(|| {
                format!(
                    "nobody appended event {} at {} {}",
                    event.id, event.stream, event.revision
                )
            });
        }
    }
    for (name, seen) in tails {
        judge_tail(&mut verdict, stored, name, seen);
    }
    verdict
}

/// Checks the order of logs and streams; returns where each event is.
fn order(verdict: &mut Verdict, stored: &[RecordedEvent]) -> HashMap<(StreamId, EventId), Place> {
    let mut ends: HashMap<LogId, Position> = HashMap::new();
    let mut heads: HashMap<StreamId, Revision> = HashMap::new();
    let mut places = HashMap::with_capacity(stored.len());
    for event in stored {
        let before = ends.insert(event.log, event.position);
        if before.is_some_and(|before| event.position <= before) {
            verdict.disorder += 1;
            verdict.find(|| format!("position {} comes after {before:?}", event.position));
        }
        let expected = heads
            .get(&event.stream)
            .map_or(Revision(0), |head| head.next());
        if event.revision != expected {
            verdict.gaps += 1;
            verdict.find(|| {
                format!(
                    "{}: revision {} where {expected} belongs",
                    event.stream, event.revision
                )
            });
        }
        heads.insert(event.stream.clone(), event.revision);
        let place = Place {
            revision: event.revision,
            position: event.position,
        };
        if places
            .insert((event.stream.clone(), event.id), place)
            .is_some()
        {
            verdict.doubled += 1;
            verdict.find(|| format!("{}: event {} is stored twice", event.stream, event.id));
        }
    }
    places
}

fn judge_operation(
    verdict: &mut Verdict,
    places: &HashMap<(StreamId, EventId), Place>,
    operation: &Operation,
    known: &mut HashSet<EventId>,
) {
    let (mut found, mut wanted) = (0, 0);
    for (nth, part) in operation.request.streams.iter().enumerate() {
        for (at, id) in ids(part).enumerate() {
            known.insert(id);
            wanted += 1;
            let place = places.get(&(part.stream.clone(), id));
            found += u64::from(place.is_some());
            if let Answer::Acknowledged(appended) = &operation.answer {
                let answered = &appended.streams[nth];
                let revision = Revision(answered.first_revision.0 + at as u64);
                let is_last = at + 1 == part.events.len();
                match place {
                    None => {
                        verdict.lost += 1;
                        verdict.find(|| {
                            format!(
                                "{} {revision}: acknowledged event {id} is lost",
                                part.stream
                            )
                        });
                    }
                    Some(place)
                        if place.revision != revision
                            || (is_last && place.position != answered.position) =>
                    {
                        verdict.misplaced += 1;
                        verdict.find(|| {
                            format!(
                                "{} {revision}: event {id} is at {} position {}",
                                part.stream, place.revision, place.position
                            )
                        });
                    }
                    Some(_) => {}
                }
            }
        }
    }
    match &operation.answer {
        Answer::Acknowledged(_) => verdict.acknowledged += wanted,
        Answer::Refused(kind) if found > 0 => {
            verdict.uninvited += found;
            verdict.find(|| format!("{found} events are stored of an append refused with: {kind}"));
        }
        Answer::Open if found > 0 && found < wanted => {
            verdict.torn += 1;
            verdict.find(|| format!("{found} of {wanted} events of one append are stored"));
        }
        Answer::Refused(_) | Answer::Open => {}
    }
}

fn ids(part: &StreamAppend) -> impl Iterator<Item = EventId> {
    part.events.iter().filter_map(|event| event.id)
}

/// What a tail received must be the stored log up to its end, event by event.
fn judge_tail(verdict: &mut Verdict, stored: &[RecordedEvent], name: &str, seen: &[Seen]) {
    let mut logs: HashMap<LogId, Vec<&Seen>> = HashMap::new();
    for event in seen {
        logs.entry(event.log).or_default().push(event);
    }
    for (log, seen) in logs {
        let end = seen
            .iter()
            .map(|seen| seen.position)
            .max()
            .unwrap_or_default();
        let mut received = seen.into_iter().peekable();
        for event in stored
            .iter()
            .filter(|event| event.log == log && event.position <= end)
        {
            while let Some(early) = received.next_if(|seen| seen.position < event.position) {
                phantom(verdict, name, early);
            }
            match received.next_if(|seen| seen.position == event.position) {
                Some(seen) if seen.id == event.id => {}
                Some(seen) => phantom(verdict, name, seen),
                None => {
                    verdict.late += 1;
                    verdict.find(|| {
                        format!(
                            "{name} passed position {} of log {log} without seeing event {}",
                            event.position, event.id
                        )
                    });
                }
            }
        }
        received.for_each(|seen| phantom(verdict, name, seen));
    }
}

fn phantom(verdict: &mut Verdict, name: &str, seen: &Seen) {
    verdict.phantom += 1;
    verdict.find(|| {
        format!(
            "{name} received event {} at position {}, where it is not",
            seen.id, seen.position
        )
    });
}

#[cfg(test)]
mod tests {
    use gesta_core::{
        Append, Appended, AppendedStream, Checkpoint, ContentType, ErrorKind, EventData, EventType,
        ExpectedRevision, Incarnation, Tags, Timestamp,
    };

    use super::*;

    fn id(n: u128) -> EventId {
        EventId(uuid::Uuid::from_u128(n))
    }

    fn stream() -> StreamId {
        StreamId::new("a-1").unwrap()
    }

    fn stored(n: u64) -> RecordedEvent {
        RecordedEvent {
            stream: stream(),
            revision: Revision(n - 1),
            log: LogId(0),
            position: Position(n),
            id: id(u128::from(n)),
            event_type: EventType::new("t").unwrap(),
            created: Timestamp(0),
            content_type: ContentType::Json,
            data: "1".into(),
            metadata: "".into(),
            tags: Tags::NONE,
        }
    }

    fn operation(first: u64, count: u64, answer: impl FnOnce(Appended) -> Answer) -> Operation {
        let event =
            |n: u64| EventData::json(EventType::new("t").unwrap(), "1").with_id(id(u128::from(n)));
        let last = first + count - 1;
        let appended = Appended {
            streams: vec![AppendedStream {
                stream: stream(),
                first_revision: Revision(first - 1),
                last_revision: Revision(last - 1),
                position: Position(last),
            }],
            log: LogId(0),
            position: Position(last),
            checkpoint: Checkpoint::logs(Incarnation::random(), vec![Position(last)]),
        };
        Operation {
            request: Append::to(
                stream(),
                ExpectedRevision::Any,
                (first..=last).map(event).collect(),
            ),
            answer: answer(appended),
        }
    }

    fn seen(n: u64) -> Seen {
        Seen {
            log: LogId(0),
            position: Position(n),
            id: id(u128::from(n)),
        }
    }

    fn told(first: u64, count: u64) -> Operation {
        operation(first, count, Answer::Acknowledged)
    }

    fn all(n: u64) -> Vec<RecordedEvent> {
        (1..=n).map(stored).collect()
    }

    #[test]
    fn a_sound_history_has_no_faults() {
        let refused = operation(90, 2, |_| Answer::Refused(ErrorKind::Refused("no".into())));
        let open = operation(95, 2, |_| Answer::Open);
        let tails = vec![("t".to_owned(), vec![seen(1), seen(2), seen(3)])];
        let verdict = judge(&all(5), &[told(1, 2), told(3, 3), refused, open], &tails);
        assert_eq!(verdict.faults(), 0, "{verdict:?}");
        assert_eq!((verdict.stored, verdict.acknowledged), (5, 5));
    }

    #[test]
    fn each_fault_is_found() {
        let base = [told(1, 2), told(3, 3)];
        let lost = judge(&all(4), &base, &[]);
        assert_eq!((lost.lost, lost.faults()), (1, 1));

        let mut twice = all(5);
        twice.push(RecordedEvent {
            id: id(5),
            ..stored(6)
        });
        let doubled = judge(&twice, &base, &[]);
        assert_eq!(doubled.doubled, 1);

        let gap = judge(
            &[stored(1), stored(3)],
            &[operation(1, 3, |_| Answer::Open)],
            &[],
        );
        assert_eq!((gap.gaps, gap.torn), (1, 1));

        let uninvited = judge(&all(6), &base, &[]);
        assert_eq!((uninvited.uninvited, uninvited.faults()), (1, 1));

        let refused = operation(3, 3, |_| Answer::Refused(ErrorKind::Refused("no".into())));
        assert_eq!(judge(&all(5), &[told(1, 2), refused], &[]).uninvited, 3);

        let misplaced = operation(3, 3, |mut appended| {
            appended.streams[0].position = Position(9);
            Answer::Acknowledged(appended)
        });
        assert_eq!(judge(&all(5), &[told(1, 2), misplaced], &[]).misplaced, 1);

        let mut swapped = all(2);
        swapped[1].position = Position(1);
        assert_eq!(
            judge(&swapped, &[operation(1, 2, |_| Answer::Open)], &[]).disorder,
            1
        );
    }

    #[test]
    fn a_tail_that_missed_or_dreamt_is_found() {
        let base = [told(1, 5)];
        let late = judge(&all(5), &base, &[("t".into(), vec![seen(1), seen(3)])]);
        assert_eq!((late.late, late.faults()), (1, 1));
        let mut wrong = seen(2);
        wrong.id = id(77);
        let phantom = judge(&all(5), &base, &[("t".into(), vec![seen(1), wrong])]);
        assert_eq!((phantom.phantom, phantom.faults()), (1, 1));
        let beyond = judge(
            &all(5),
            &base,
            &[(
                "t".into(),
                vec![seen(1), seen(2), seen(3), seen(4), seen(5), seen(6)],
            )],
        );
        assert_eq!(beyond.phantom, 1);
    }
}
