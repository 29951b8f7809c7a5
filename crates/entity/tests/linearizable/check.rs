//! Is a history linearizable, durable and free of doubles?
//!
//! An entity's events and the deletes of its stream, each with the moment at which it became durable, tell the state at
//! every moment, and an answer names the state that it rests on. Whether that fits says `gesta_kit::judge::entities`:
//! at some moment between call and answer that state was the state of the entity, and durable; what was handed over
//! later to the same runtime rests on no earlier state. Here is what is stored of each command, and of all with one
//! key. Only the empty state may come more than once.

use std::collections::HashMap;

use gesta_kit::faulty::StoredEvent;
use gesta_kit::judge::entities::{Reply, States};
use gesta_kit::verdict::{Kind, Verdict};

use crate::chain::{Event, Seen, decode, stream_name};
use crate::history::{Answer, Attempt, Operation};
use crate::nodes::Doubts;
use crate::play::Played;

/// One entity's stream. Its changes are its events and its deletes.
struct Stream {
    states: States<Seen>,
    /// Number of an event to its places: the number of changes up to it.
    places: HashMap<u64, Vec<u64>>,
    /// The revisions of events, by their places.
    revisions: HashMap<u64, u64>,
    /// The places of the deletes.
    deletes: Vec<u64>,
}

impl Stream {
    fn of(entity: usize, stored: &[StoredEvent], verdict: &mut Verdict) -> Self {
        let name = stream_name(entity);
        let mut stream = Self {
            states: States::new(Seen::default()),
            places: HashMap::new(),
            revisions: HashMap::new(),
            deletes: Vec::new(),
        };
        let mut tip = Seen::default();
        let described = format!("$${name}");
        for stored in stored {
            let place = stream.states.end() + 1;
            let durable = Some(stored.durable.0);
            if stored.event.stream.as_str() == described
                && stored.event.event_type.as_str() == "$deleted"
            {
                tip = Seen::default();
                stream.states.push(tip, durable);
                stream.deletes.push(place);
                continue;
            }
            if stored.event.stream.as_str() != name {
                continue;
            }
            let event = decode(&stored.event);
            if let Event::Decided { upon, .. } = event
                && upon != tip
            {
                verdict.add(Kind::WrongBasis, 1, || {
                    format!("{event:?} in {name} follows {tip:?}")
                });
            }
            tip = tip.and(event.number());
            stream.states.push(tip, durable);
            let places = stream.places.entry(event.number()).or_default();
            places.push(place);
            stream.revisions.insert(place, stored.event.revision.0);
        }
        stream
    }

    /// The place of the last event of an attempt, if its events are stored.
    fn place(&self, attempt: &Attempt) -> Option<u64> {
        let last = attempt.numbers().last()?;
        self.places.get(&last)?.first().copied()
    }
}

/// Everything that is wrong with a history.
pub(crate) fn check(played: &Played) -> Verdict {
    let mut verdict = Verdict::default();
    for entity in 0..played.entities {
        let stream = Stream::of(entity, &played.stored, &mut verdict);
        let attempts = played.history.iter();
        let attempts: Vec<&Attempt> = attempts.filter(|a| a.entity == entity).collect();
        for attempt in &attempts {
            let broken = [
                check_stored(&stream, attempt),
                check_revision(&stream, attempt),
            ];
            for kind in broken.into_iter().flatten() {
                verdict.add(kind, 1, || format!("{attempt:?}"));
            }
        }
        check_keys(&stream, &attempts, &mut verdict);
        let name = stream_name(entity);
        let answered: Vec<&Attempt> = attempts
            .into_iter()
            .filter(|attempt| attempt.seen().is_some())
            .collect();
        let replies: Vec<Reply<Seen>> = answered
            .iter()
            .filter_map(|attempt| reply(attempt, &name, &played.doubts))
            .collect();
        let tell = |number: usize| format!("{:?}", answered[number]);
        stream.states.judge(&name, &replies, tell, &mut verdict);
    }
    verdict
}

/// What an answer says about the entity, if it says something.
fn reply(attempt: &Attempt, stream: &str, doubts: &Doubts) -> Option<Reply<Seen>> {
    let is_doubted = match attempt.asked {
        Operation::Command(_) => doubts.commands.contains(&attempt.numbers().start),
        Operation::Read | Operation::StaleRead => {
            doubts.reads.iter().any(|one| one.as_str() == stream)
        }
    };
    let is_confirmed = attempt.is_confirmed();
    Some(Reply {
        // What is not confirmed may rest on any state that has been.
        began: if is_confirmed { attempt.invoked.0 } else { 0 },
        ended: attempt.answered.map_or(u64::MAX, |answered| answered.0),
        runtime: (is_confirmed && !is_doubted).then_some(attempt.runtime as u64),
        state: attempt.seen()?,
        own: match attempt.answer {
            Answer::Done {
                repeated: false, ..
            } => attempt.numbers().count() as u64,
            _ => 0,
        },
    })
}

/// Its events are stored once, or not at all, as its answer says.
fn check_stored(stream: &Stream, attempt: &Attempt) -> Option<Kind> {
    let places: Vec<&Vec<u64>> = attempt
        .numbers()
        .filter_map(|number| stream.places.get(&number))
        .collect();
    if places.iter().any(|places| places.len() > 1) {
        return Some(Kind::StoredTwice);
    }
    let count = attempt.numbers().count();
    let whole = places.len() == count && places.windows(2).all(|two| two[0][0] + 1 == two[1][0]);
    match &attempt.answer {
        Answer::Done { repeated: true, .. } | Answer::Read(_) => None,
        Answer::Done { seen, .. } => {
            let is_it = |last: &&Vec<u64>| stream.states.at(last[0]) == Some(*seen);
            let there = whole && places.last().is_none_or(is_it);
            (!there).then_some(Kind::NotStored)
        }
        Answer::Rejected(_) | Answer::Refused(_) | Answer::KeyReused => {
            (!places.is_empty()).then_some(Kind::RefusedStored)
        }
        Answer::Unknown(_) | Answer::Nobody => {
            let part = !places.is_empty() && !whole;
            part.then_some(Kind::PartlyStored)
        }
        Answer::Broken(_) => Some(Kind::Answer),
        Answer::Hangs => Some(Kind::Unanswered),
    }
}

fn check_revision(stream: &Stream, attempt: &Attempt) -> Option<Kind> {
    let Answer::Done { seen, revision, .. } = attempt.answer else {
        return None;
    };
    let expected = match attempt.numbers().is_empty() {
        true => None,
        false => {
            let place = stream.states.places(seen).next();
            place.and_then(|place| stream.revisions.get(&place).copied())
        }
    };
    // Not known if the append was given up as unknown, and what came after it has proven that it is stored.
    (revision.is_some() && revision != expected).then_some(Kind::WrongPlace)
}

/// Of the attempts with one key, one at most is stored, and all who are told so are told the same.
fn check_keys(stream: &Stream, attempts: &[&Attempt], verdict: &mut Verdict) {
    let mut keys: HashMap<&str, Vec<&Attempt>> = HashMap::new();
    for attempt in attempts {
        if let Some(key) = &attempt.key {
            keys.entry(key).or_default().push(attempt);
        }
    }
    for (key, attempts) in keys {
        let mut stored: Vec<u64> = attempts.iter().filter_map(|a| stream.place(a)).collect();
        stored.sort_unstable();
        // With the stream its keys are deleted: what a caller sends again after that is another command.
        let is_between = |two: &[u64], delete: &u64| (two[0]..two[1]).contains(delete);
        let is_twice = |two: &[u64]| !stream.deletes.iter().any(|delete| is_between(two, delete));
        if stored.windows(2).any(is_twice) {
            verdict.add(Kind::StoredTwice, 1, || format!("{key}: {attempts:?}"));
        }
        let differs = |attempt: &&&Attempt| match attempt.answer {
            Answer::Done {
                seen,
                repeated: true,
                ..
            } => !stored
                .iter()
                .any(|place| stream.states.at(*place) == Some(seen)),
            _ => false,
        };
        if let Some(other) = attempts.iter().find(differs) {
            verdict.add(Kind::OtherReply, 1, || format!("{other:?} of {attempts:?}"));
        }
        if let Some(wrong) = attempts
            .iter()
            .find(|a| has_wrong_key(stream, a, &attempts))
        {
            verdict.add(Kind::WrongKey, 1, || format!("{wrong:?} of {attempts:?}"));
        }
    }
}

/// Only a retry of the stored command gets its reply, and only another one is told that the key was used, once that is
/// so.
fn has_wrong_key(stream: &Stream, attempt: &Attempt, attempts: &[&Attempt]) -> bool {
    let mut stored = attempts
        .iter()
        .filter(|other| stream.place(other).is_some());
    match attempt.answer {
        Answer::Done { repeated: true, .. } => !stored.any(|s| s.kind() == attempt.kind()),
        Answer::KeyReused => !stored.any(|stored| {
            let place = stream.place(stored);
            let durable = place.and_then(|place| stream.states.reached(place));
            let answered = attempt.answered.map(|answered| answered.0);
            stored.kind() != attempt.kind() && durable <= answered
        }),
        _ => false,
    }
}
