//! Is a history linearizable, durable and free of doubles?
//!
//! The log is the order: an entity's events, each with the moment at which it became durable, tell the state at every
//! moment. An answer names the state that it rests on, so no search for an order is needed:
//! * a state that was answered is a prefix of the stream, all of which became durable before the answer;
//! * a confirmed answer includes whatever was durable before it was asked for;
//! * so at some moment between, that state was the state of the entity.

use std::collections::HashMap;

use gesta_testkit::faulty::{Moment, StoredEvent};

use crate::chain::{Event, Seen, decode, stream_name};
use crate::history::{Answer, Asked, Attempt};
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

/// One entity's stream.
struct Stream {
    /// By length.
    prefixes: Vec<Seen>,
    durable: Vec<Moment>,
    /// Number of an event to its places, counted from 1.
    places: HashMap<u64, Vec<u64>>,
}

impl Stream {
    fn of(entity: usize, stored: &[StoredEvent], found: &mut Vec<Violation>) -> Self {
        let name = stream_name(entity);
        let mut stream = Self {
            prefixes: vec![Seen::default()],
            durable: Vec::new(),
            places: HashMap::new(),
        };
        let mut tip = Seen::default();
        let of_it = |stored: &&StoredEvent| stored.event.stream.as_str() == name;
        for stored in stored.iter().filter(of_it) {
            let event = decode(&stored.event);
            if let Event::Decided { upon, .. } = event
                && upon != tip
            {
                let what = format!("{event:?} in {name} follows {tip:?}");
                found.push((Broken::DecidedUponUnstored, what));
            }
            tip = tip.and(event.number());
            stream.prefixes.push(tip);
            stream.durable.push(stored.durable);
            let places = stream.places.entry(event.number()).or_default();
            places.push(tip.length);
        }
        stream
    }

    /// How many events were durable before that moment.
    fn length_at(&self, moment: Moment) -> u64 {
        let durable = self.durable.iter().filter(|durable| **durable < moment);
        durable.count() as u64
    }

    /// When the stream became that long.
    fn reached(&self, length: u64) -> Option<Moment> {
        let last = length.checked_sub(1)?;
        self.durable.get(usize::try_from(last).ok()?).copied()
    }

    fn is_prefix(&self, seen: Seen) -> bool {
        let at = usize::try_from(seen.length).expect("small");
        self.prefixes.get(at) == Some(&seen)
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
        check_order(&attempts, &played.doubts, &mut found);
    }
    found
}

fn check_attempt(stream: &Stream, attempt: &Attempt) -> impl Iterator<Item = Broken> {
    let answers = [
        check_seen(stream, attempt),
        check_freshness(stream, attempt),
        check_stored(stream, attempt),
        check_revision(attempt),
    ];
    answers.into_iter().flatten()
}

/// What an answer rests on was stored, and durable before the answer.
fn check_seen(stream: &Stream, attempt: &Attempt) -> Option<Broken> {
    let seen = attempt.seen()?;
    if !stream.is_prefix(seen) {
        return Some(Broken::RestsOnUnstored);
    }
    let reached = stream.reached(seen.length)?;
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
    let outdated = seen.length < stream.length_at(attempt.invoked) + own;
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
            let there = whole && places.last().is_none_or(|last| last[0] == seen.length);
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

fn check_revision(attempt: &Attempt) -> Option<Broken> {
    let Answer::Done { seen, revision, .. } = attempt.answer else {
        return None;
    };
    let expected = match attempt.numbers().is_empty() {
        true => None,
        false => seen.length.checked_sub(1),
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
        let stored: Vec<u64> = attempts.iter().filter_map(|a| stream.place(a)).collect();
        if stored.len() > 1 {
            found.push((Broken::Twice, format!("{key}: {attempts:?}")));
        }
        let differs = |attempt: &&&Attempt| match attempt.answer {
            Answer::Done {
                seen,
                repeated: true,
                ..
            } => Some(&seen.length) != stored.first(),
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
    let stored = attempts.iter().find(|other| stream.place(other).is_some());
    match attempt.answer {
        Answer::Done { repeated: true, .. } => stored.map(|s| s.kind()) != Some(attempt.kind()),
        Answer::KeyReused => !stored.is_some_and(|stored| {
            let durable = stream.place(stored).and_then(|place| stream.reached(place));
            stored.kind() != attempt.kind() && durable <= attempt.answered
        }),
        _ => false,
    }
}

/// What was handed over later to the same runtime rests on no earlier state, if each was tried once.
fn check_order(attempts: &[&Attempt], doubts: &Doubts, found: &mut Vec<Violation>) {
    let is_doubted = |attempt: &Attempt| match attempt.asked {
        Asked::Command(_) => doubts.commands.contains(&attempt.numbers().start),
        Asked::Read | Asked::StaleRead => doubts.reads,
    };
    let mut latest: HashMap<usize, (u64, &Attempt)> = HashMap::new();
    for attempt in attempts {
        if is_doubted(attempt) {
            continue;
        }
        let Some(seen) = attempt.seen().filter(|_| attempt.is_confirmed()) else {
            continue;
        };
        let (length, earlier) = latest.entry(attempt.runtime).or_insert((0, attempt));
        if seen.length < *length {
            found.push((Broken::Overtaken, format!("{attempt:?} after {earlier:?}")));
        } else {
            (*length, *earlier) = (seen.length, attempt);
        }
    }
}
