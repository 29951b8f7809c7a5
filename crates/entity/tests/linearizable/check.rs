//! Is a history linearizable, durable and free of doubles?
//!
//! The log is the order: an entity's events and the deletes of its stream, each with the moment at which it became
//! durable, tell the state at every moment. An answer names the state that it rests on, so no search for an order is
//! needed. Only the empty state may come more than once; the latest that an answer can rest on counts.
//! * a state that was answered is one of the stream, which became durable before the answer;
//! * a confirmed answer includes whatever was durable before it was asked for;
//! * so at some moment between, that state was the state of the entity.

use std::collections::HashMap;

use gesta_kit::faulty::{Moment, StoredEvent};

use crate::chain::{Event, Seen, decode, stream_name};
use crate::history::{Answer, Attempt, Operation};
use crate::nodes::Doubts;
use crate::play::Played;

/// A promise that was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// An event was decided upon a state that never was.
    DecidedUponUnstored,
    /// An answer rests on a state that never was.
    RestsOnUnstored,
    /// Answered before what it rests on was durable.
    AnsweredEarly,
    /// Something was durable before it was asked, and it did not see that.
    Outdated,
    /// Acknowledged, but not stored, or not where the answer says.
    Lost,
    /// Stored more than once.
    Twice,
    /// It was said that nothing was stored.
    RefusedButStored,
    /// Handed over later, but stored earlier.
    Overtaken,
    /// A retry got another answer than the command that was stored.
    OtherReply,
    /// Another command got the reply of the first with its key, or a retry was taken for another command.
    WrongKey,
    /// The answer tells another revision than that of the last event.
    WrongRevision,
    /// No answer, or one that must not happen.
    Fails,
}

/// A broken promise, and how it shows.
pub(crate) type Violation = (Broken, String);

/// One entity's stream. Its changes are its events and its deletes.
struct Stream {
    /// The states, by the number of changes before.
    states: Vec<Seen>,
    /// When each change became durable.
    durable: Vec<Moment>,
    /// Number of an event to its places: the number of changes up to it.
    places: HashMap<u64, Vec<u64>>,
    /// The revisions of events, by their places.
    revisions: HashMap<u64, u64>,
    /// The places of the deletes.
    deletes: Vec<u64>,
}

impl Stream {
    fn of(entity: usize, stored: &[StoredEvent], found: &mut Vec<Violation>) -> Self {
        let name = stream_name(entity);
        let mut stream = Self {
            states: vec![Seen::default()],
            durable: Vec::new(),
            places: HashMap::new(),
            revisions: HashMap::new(),
            deletes: Vec::new(),
        };
        let mut tip = Seen::default();
        let described = format!("$${name}");
        for stored in stored {
            let place = stream.states.len() as u64;
            if stored.event.stream.as_str() == described
                && stored.event.event_type.as_str() == "$deleted"
            {
                tip = Seen::default();
                stream.states.push(tip);
                stream.durable.push(stored.durable);
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
                let what = format!("{event:?} in {name} follows {tip:?}");
                found.push((Broken::DecidedUponUnstored, what));
            }
            tip = tip.and(event.number());
            stream.states.push(tip);
            stream.durable.push(stored.durable);
            let places = stream.places.entry(event.number()).or_default();
            places.push(place);
            stream.revisions.insert(place, stored.event.revision.0);
        }
        stream
    }

    /// How many changes were durable before that moment.
    fn changes_at(&self, moment: Moment) -> u64 {
        let durable = self.durable.iter().filter(|durable| **durable < moment);
        durable.count() as u64
    }

    /// When this change became durable.
    fn reached(&self, place: u64) -> Option<Moment> {
        let last = place.checked_sub(1)?;
        self.durable.get(usize::try_from(last).ok()?).copied()
    }

    /// The places of a state.
    fn all_of(&self, seen: Seen) -> impl DoubleEndedIterator<Item = u64> {
        let states = (0..).zip(&self.states);
        let found: Vec<u64> = states
            .filter(|(_, state)| **state == seen)
            .map(|(place, _): (u64, _)| place)
            .collect();
        found.into_iter()
    }

    /// The place of the latest such state that was durable when this was answered, or of the first.
    fn place_of(&self, seen: Seen, attempt: &Attempt) -> Option<u64> {
        let is_early = |place: &u64| {
            let reached = self.reached(*place);
            attempt
                .answered
                .is_some_and(|answered| Some(answered) < reached)
        };
        let latest = self.all_of(seen).rev().find(|place| !is_early(place));
        latest.or_else(|| self.all_of(seen).next())
    }

    fn state(&self, place: u64) -> Option<Seen> {
        self.states.get(usize::try_from(place).ok()?).copied()
    }

    /// The place of the last event of an attempt, if its events are stored.
    fn place(&self, attempt: &Attempt) -> Option<u64> {
        let last = attempt.numbers().last()?;
        self.places.get(&last)?.first().copied()
    }
}

/// Everything that is wrong with a history.
pub(crate) fn check(played: &Played) -> Vec<Violation> {
    let mut found = Vec::new();
    for entity in 0..played.entities {
        let stream = Stream::of(entity, &played.stored, &mut found);
        let attempts = played.history.iter();
        let attempts: Vec<&Attempt> = attempts.filter(|a| a.entity == entity).collect();
        for attempt in &attempts {
            let broken = check_attempt(&stream, attempt);
            found.extend(broken.map(|broken| (broken, format!("{attempt:?}"))));
        }
        check_keys(&stream, &attempts, &mut found);
        let are_reads_doubted = {
            let mut streams = played.doubts.reads.iter();
            streams.any(|doubted| doubted.as_str() == stream_name(entity))
        };
        check_order(
            &stream,
            &attempts,
            &played.doubts,
            are_reads_doubted,
            &mut found,
        );
    }
    found
}

fn check_attempt(stream: &Stream, attempt: &Attempt) -> impl Iterator<Item = Broken> {
    let answers = [
        check_seen(stream, attempt),
        check_freshness(stream, attempt),
        check_stored(stream, attempt),
        check_revision(stream, attempt),
    ];
    answers.into_iter().flatten()
}

/// What an answer rests on was stored, and durable before the answer.
fn check_seen(stream: &Stream, attempt: &Attempt) -> Option<Broken> {
    let Some(place) = stream.place_of(attempt.seen()?, attempt) else {
        return Some(Broken::RestsOnUnstored);
    };
    let reached = stream.reached(place)?;
    let early = attempt.answered.is_some_and(|answered| answered < reached);
    early.then_some(Broken::AnsweredEarly)
}

/// A confirmed answer includes all that was durable before it was asked for.
fn check_freshness(stream: &Stream, attempt: &Attempt) -> Option<Broken> {
    let seen = attempt.seen().filter(|_| attempt.is_confirmed())?;
    let own = match attempt.answer {
        Answer::Done { .. } => attempt.numbers().count() as u64,
        _ => 0,
    };
    let place = stream.place_of(seen, attempt)?;
    let outdated = place < stream.changes_at(attempt.invoked) + own;
    outdated.then_some(Broken::Outdated)
}

/// Its events are stored once, or not at all, as its answer says.
fn check_stored(stream: &Stream, attempt: &Attempt) -> Option<Broken> {
    let places: Vec<&Vec<u64>> = attempt
        .numbers()
        .filter_map(|number| stream.places.get(&number))
        .collect();
    if places.iter().any(|places| places.len() > 1) {
        return Some(Broken::Twice);
    }
    let count = attempt.numbers().count();
    let whole = places.len() == count && places.windows(2).all(|two| two[0][0] + 1 == two[1][0]);
    match &attempt.answer {
        Answer::Done { repeated: true, .. } | Answer::Read(_) => None,
        Answer::Done { seen, .. } => {
            let is_it = |last: &&Vec<u64>| stream.state(last[0]) == Some(*seen);
            let there = whole && places.last().is_none_or(is_it);
            (!there).then_some(Broken::Lost)
        }
        Answer::Rejected(_) | Answer::Refused(_) | Answer::KeyReused => {
            (!places.is_empty()).then_some(Broken::RefusedButStored)
        }
        Answer::Unknown(_) | Answer::Nobody => {
            let part = !places.is_empty() && !whole;
            part.then_some(Broken::Lost)
        }
        Answer::Broken(_) | Answer::Hangs => Some(Broken::Fails),
    }
}

fn check_revision(stream: &Stream, attempt: &Attempt) -> Option<Broken> {
    let Answer::Done { seen, revision, .. } = attempt.answer else {
        return None;
    };
    let expected = match attempt.numbers().is_empty() {
        true => None,
        false => stream
            .all_of(seen)
            .next()
            .and_then(|place| stream.revisions.get(&place).copied()),
    };
    // Not known if the append was given up as unknown, and what came after it has proven that it is stored.
    (revision.is_some() && revision != expected).then_some(Broken::WrongRevision)
}

/// Of the attempts with one key, one at most is stored, and all who are told so are told the same.
fn check_keys(stream: &Stream, attempts: &[&Attempt], found: &mut Vec<Violation>) {
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
            found.push((Broken::Twice, format!("{key}: {attempts:?}")));
        }
        let differs = |attempt: &&&Attempt| match attempt.answer {
            Answer::Done {
                seen,
                repeated: true,
                ..
            } => !stored
                .iter()
                .any(|place| stream.state(*place) == Some(seen)),
            _ => false,
        };
        if let Some(other) = attempts.iter().find(differs) {
            found.push((Broken::OtherReply, format!("{other:?} of {attempts:?}")));
        }
        if let Some(wrong) = attempts
            .iter()
            .find(|a| has_wrong_key(stream, a, &attempts))
        {
            found.push((Broken::WrongKey, format!("{wrong:?} of {attempts:?}")));
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
            let durable = stream.place(stored).and_then(|place| stream.reached(place));
            stored.kind() != attempt.kind() && durable <= attempt.answered
        }),
        _ => false,
    }
}

/// What was handed over later to the same runtime rests on no earlier state, if each was tried once.
fn check_order(
    stream: &Stream,
    attempts: &[&Attempt],
    doubts: &Doubts,
    are_reads_doubted: bool,
    found: &mut Vec<Violation>,
) {
    let is_doubted = |attempt: &Attempt| match attempt.asked {
        Operation::Command(_) => doubts.commands.contains(&attempt.numbers().start),
        Operation::Read | Operation::StaleRead => are_reads_doubted,
    };
    let mut latest: HashMap<usize, (u64, &Attempt)> = HashMap::new();
    for attempt in attempts {
        if is_doubted(attempt) {
            continue;
        }
        let Some(seen) = attempt.seen().filter(|_| attempt.is_confirmed()) else {
            continue;
        };
        let Some(place) = stream.place_of(seen, attempt) else {
            continue;
        };
        // The empty state may be an earlier one than the latest that it can be.
        let first = stream.all_of(seen).next().unwrap_or(place);
        let (latest, earlier) = latest.entry(attempt.runtime).or_insert((0, attempt));
        if place < *latest {
            found.push((Broken::Overtaken, format!("{attempt:?} after {earlier:?}")));
        } else if first >= *latest {
            (*latest, *earlier) = (first, attempt);
        }
    }
}
