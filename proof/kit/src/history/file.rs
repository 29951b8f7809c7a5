//! A history as operations that others can judge, and back.

use std::collections::HashMap;

use gesta_core::{
    AppendedStream, Checkpoint, EventId, ExpectedRevision, Incarnation, LogId, Position,
    RecordedEvent, Revision, StreamId, Timestamp,
};
use uuid::Uuid;

use super::{AttemptPart, Look, Outcome, Records, Request, RunHistory, Seen};
use crate::operations::{self, Action, Appended, Change, Claim, Done, Events, Held, Operation};

/// What the streams are called whose last event is the value of a register.
const REGISTER: &str = "register-";

impl RunHistory {
    /// Everything that was asked and answered about streams, and as the last operation of each stream what it holds in
    /// the end: `events` is all that is stored, each log in its order. Streams whose names begin with `register-` are
    /// told as registers: their value is the id of their last event.
    #[must_use]
    pub fn operations(&self, events: &[RecordedEvent]) -> Vec<Operation> {
        let records = self.lock();
        let mut stored: HashMap<&StreamId, Vec<EventId>> = HashMap::new();
        for request in &records.requests {
            for part in &request.parts {
                stored.entry(&part.stream).or_default();
            }
        }
        for look in &records.looks {
            stored.entry(&look.stream).or_default();
        }
        for event in events {
            if let Some(ids) = stored.get_mut(&event.stream) {
                ids.push(event.id);
            }
        }
        let mut told = Vec::new();
        for request in &records.requests {
            for (at, part) in request.parts.iter().enumerate() {
                let is_register = part.stream.as_str().starts_with(REGISTER);
                match is_register {
                    true => told.extend(of_register(request, part, &stored[&part.stream])),
                    false => told.extend(of_stream(request, at)),
                }
            }
        }
        let seen = |look: &Look| {
            let ids = look.last.iter();
            (look.length, ids.map(|id| id.0).collect::<Vec<_>>())
        };
        for look in &records.looks {
            let (length, ids) = seen(look);
            told.push(operation(look, read(look.stream.as_str(), length, ids)));
        }
        for (stream, ids) in stored {
            let end = Look {
                client: 0,
                stream: stream.clone(),
                began: self.ticks.next(),
                ended: self.ticks.next(),
                length: ids.len() as u64,
                last: ids,
            };
            let (length, ids) = seen(&end);
            told.push(operation(&end, read(stream.as_str(), length, ids)));
        }
        told.sort_by_key(|operation| operation.call);
        told
    }
}

/// What was asked and answered about one stream, and what it holds in the end, as if it were alone in its log.
///
/// # Panics
/// If some are not operations of a stream, or the whole stream was never read.
pub(crate) fn records_of(operations: &[Operation]) -> (Records, Vec<Seen>) {
    let (mut records, mut whole) = (Records::default(), None);
    let mut sorted: Vec<&Operation> = operations.iter().collect();
    sorted.sort_by_key(|operation| operation.call);
    for operation in sorted {
        let stream = StreamId::new(&*operation.key).expect("the name of a stream");
        match &operation.action {
            Action::Append { input, output } => {
                let part = AttemptPart {
                    expected: expected(input.claim),
                    ids: input.ids.iter().map(|id| EventId(*id)).collect(),
                    stream: stream.clone(),
                };
                let attempt =
                    records.begin_at(operation.call, operation.client, (vec![part], Vec::new()));
                let outcome = output.as_ref().map(|output| outcome(stream, input, output));
                // What is sent again was given up before, so a refusal of any later attempt counts.
                *records.ended(attempt) = match (operation.answered, outcome) {
                    (Some(answered), Some(outcome)) => Some((answered, outcome)),
                    _ => Some((operation.call, Outcome::Unknown)),
                };
            }
            Action::ReadStream { output } => {
                let last: Vec<EventId> = output.ids.iter().map(|id| EventId(*id)).collect();
                if output.length == last.len() as u64 {
                    whole = Some((stream.clone(), last.clone()));
                }
                records.looks.push(Look {
                    client: operation.client,
                    stream,
                    began: operation.call,
                    ended: operation.answered.unwrap_or(u64::MAX),
                    length: output.length,
                    last,
                });
            }
            other => panic!("not of a stream: {other:?}"),
        }
    }
    let (stream, ids) = whole.expect("a read of the whole stream");
    let events = (0..).zip(ids).map(|(revision, id)| Seen {
        log: LogId(0),
        position: Position(revision + 1),
        stream: stream.clone(),
        revision: Revision(revision),
        id,
        created: Timestamp::default(),
    });
    (records, events.collect())
}

fn operation(look: &Look, action: Action) -> Operation {
    Operation {
        key: look.stream.as_str().to_owned(),
        client: look.client,
        call: look.began,
        answered: Some(look.ended),
        action,
    }
}

/// A read of a stream, or of a register.
fn read(stream: &str, length: u64, ids: Vec<Uuid>) -> Action {
    match stream.starts_with(REGISTER) {
        true => Action::ReadRegister {
            output: Held {
                value: ids.last().copied(),
            },
        },
        false => Action::ReadStream {
            output: operations::Seen { length, ids },
        },
    }
}

/// The attempts to append one part of a request.
fn of_stream(request: &Request, at: usize) -> impl Iterator<Item = Operation> {
    let part = &request.parts[at];
    let input = Events {
        claim: claim(part.expected),
        ids: part.ids.iter().map(|id| id.0).collect(),
    };
    let attempts = request.attempts.iter();
    attempts.filter_map(move |attempt| {
        let (answered, output) = match &attempt.ended {
            None | Some((_, Outcome::Unknown)) => (None, None),
            Some((_, Outcome::NotWritten)) => return None,
            Some((ended, outcome)) => (Some(*ended), Some(told(outcome, part, at))),
        };
        Some(Operation {
            key: part.stream.as_str().to_owned(),
            client: attempt.client,
            call: attempt.began,
            answered,
            action: Action::Append {
                input: input.clone(),
                output,
            },
        })
    })
}

/// What an outcome that is known tells of a part of the request.
fn told(outcome: &Outcome, part: &AttemptPart, at: usize) -> Appended {
    let length = |actual: &Option<Revision>| actual.map_or(0, |actual| actual.next().0);
    match outcome {
        Outcome::Acknowledged(appended) => match appended.streams.get(at) {
            Some(stream) => Appended::Stored {
                first: stream.first_revision.0,
            },
            // Nothing was stored at that place, so the answer is wrong.
            None => Appended::Stored { first: u64::MAX },
        },
        Outcome::Conflict(stream, actual) if *stream == part.stream => Appended::Refused {
            length: Some(length(actual)),
        },
        _ => Appended::Refused { length: None },
    }
}

/// The same of a register, as one operation from the first attempt to the answer that counts: what is sent several
/// times takes effect once.
fn of_register(request: &Request, part: &AttemptPart, stored: &[EventId]) -> Option<Operation> {
    let first = request.attempts.first()?;
    let ended = |is: fn(&Outcome) -> bool| {
        let ended = request.attempts.iter().filter_map(|a| a.ended.as_ref());
        ended
            .filter(move |(_, outcome)| is(outcome))
            .map(|(at, _)| *at)
    };
    let done = ended(|outcome| matches!(outcome, Outcome::Acknowledged(_))).min();
    let refused = ended(Outcome::is_refusal).max();
    let is_open = |outcome: &Option<(u64, Outcome)>| {
        outcome
            .as_ref()
            .is_none_or(|(_, outcome)| *outcome == Outcome::Unknown)
    };
    let is_open = request.attempts.iter().any(|a| is_open(&a.ended));
    let (answered, output) = match (done, refused) {
        (Some(done), _) => (Some(done), Some(Done::Done)),
        (None, Some(refused)) => (Some(refused), Some(Done::Refused)),
        (None, None) if is_open => (None, None),
        (None, None) => return None,
    };
    let to = part.ids.last()?.0;
    let value_at = |revision: Revision| {
        let at = usize::try_from(revision.0).ok();
        at.and_then(|at| stored.get(at)).map(|id| id.0)
    };
    let action = match part.expected {
        ExpectedRevision::Any | ExpectedRevision::StreamExists => Action::Write {
            input: Change { from: None, to },
            output,
        },
        ExpectedRevision::NoStream => Action::CompareAndSet {
            input: Change { from: None, to },
            output,
        },
        ExpectedRevision::Exact(revision) => Action::CompareAndSet {
            input: Change {
                // What nobody ever wrote, if nothing is stored there.
                from: Some(value_at(revision).unwrap_or(Uuid::max())),
                to,
            },
            output,
        },
    };
    Some(Operation {
        key: part.stream.as_str().to_owned(),
        client: first.client,
        call: first.began,
        answered,
        action,
    })
}

fn claim(expected: ExpectedRevision) -> Claim {
    match expected {
        ExpectedRevision::Any => Claim::Any,
        ExpectedRevision::NoStream => Claim::NoStream,
        ExpectedRevision::StreamExists => Claim::StreamExists,
        ExpectedRevision::Exact(revision) => Claim::Exact {
            revision: revision.0,
        },
    }
}

fn expected(claim: Claim) -> ExpectedRevision {
    match claim {
        Claim::Any => ExpectedRevision::Any,
        Claim::NoStream => ExpectedRevision::NoStream,
        Claim::StreamExists => ExpectedRevision::StreamExists,
        Claim::Exact { revision } => ExpectedRevision::Exact(Revision(revision)),
    }
}

/// The outcome that an answer tells, as if the stream were alone in its log.
fn outcome(stream: StreamId, input: &Events, output: &Appended) -> Outcome {
    match output {
        Appended::Stored { first } => {
            let count = input.ids.len() as u64;
            let last = first.saturating_add(count).saturating_sub(1);
            Outcome::Acknowledged(gesta_core::Appended {
                streams: vec![AppendedStream {
                    stream,
                    first_revision: Revision(*first),
                    last_revision: Revision(last),
                    position: Position(last.saturating_add(1)),
                }],
                log: LogId(0),
                position: Position(last.saturating_add(1)),
                checkpoint: Checkpoint::logs(Incarnation(Uuid::nil()), Vec::new()),
            })
        }
        Appended::Refused { length: None } => Outcome::Refused,
        Appended::Refused {
            length: Some(length),
        } => Outcome::Conflict(stream, length.checked_sub(1).map(Revision)),
    }
}
