//! The read-back check of a target: everything acknowledged is stored once, where it belongs, unchanged.
//!
//! What was acknowledged is a number per stream; what is stored tells by its mark which event it must be. So the check
//! needs a few bytes per stream and a bit per event.

use std::collections::HashMap;

use gesta_report::failure::Result;
use gesta_report::read_back::ReadBack;

use super::{Events, Stored, StoredAt, Target};
use crate::random::Random;

/// What was appended to streams, by the number of the stream.
#[derive(Debug, Clone, Default)]
pub struct Claims(HashMap<u64, Claim>);

#[derive(Debug, Clone, Copy, Default)]
struct Claim {
    /// Events acknowledged: revisions 0 to this, without it.
    acknowledged: u64,
    /// Events sent, those without an answer too.
    sent: u64,
    /// Sum of the digests of the places that the answers named; none if they named none.
    answers: Option<u64>,
}

/// A place of an event as a number; the sum of such numbers tells two histories apart.
fn digest(event: u64, revision: u64, position: u64) -> u64 {
    Random::fork(event ^ position.rotate_left(32), revision).next()
}

/// Remembers a number by one bit; false if it was known.
fn first_time(seen: &mut Vec<u64>, number: u64) -> bool {
    let word = usize::try_from(number / 64).expect("an index");
    if word >= seen.len() {
        seen.resize(word + 1, 0);
    }
    let bit = 1 << (number % 64);
    let first = seen[word] & bit == 0;
    seen[word] |= bit;
    first
}

impl Claims {
    /// Events up to this revision were sent, without it.
    pub fn sent(&mut self, stream: u64, events: u64) {
        let claim = self.0.entry(stream).or_default();
        claim.sent = claim.sent.max(events);
    }

    /// Events up to this revision were acknowledged, without it.
    pub fn acknowledged(&mut self, stream: u64, events: u64) {
        self.sent(stream, events);
        self.0.entry(stream).or_default().acknowledged = events;
    }

    /// The answer to an append of so many events, the first with this revision, named this place.
    pub fn placed(&mut self, stream: u64, first: u64, events: u64, place: StoredAt) {
        let claim = self.0.entry(stream).or_default();
        let answers = claim.answers.get_or_insert(0);
        for n in 0..events {
            // Events of one append are neighbours in the log; the answer names the last.
            let position = (place.position + 1 + n).saturating_sub(events);
            let digest = digest(first + n, place.revision + n, position);
            *answers = answers.wrapping_add(digest);
        }
    }

    /// Events from this revision on were refused: they must not be there.
    pub fn refused(&mut self, stream: u64, from: u64) {
        self.0.entry(stream).or_default().sent = from;
    }

    /// Number of events acknowledged.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.0.values().map(|claim| claim.acknowledged).sum()
    }

    /// Adds the streams of another worker.
    pub fn add(&mut self, other: Claims) {
        self.0.extend(other.0);
    }
}

/// Reads back everything that was appended and compares it with what was claimed.
///
/// # Errors
/// The target cannot be read.
pub async fn check(target: &dyn Target, events: &Events, claims: &Claims) -> Result<ReadBack> {
    let begin = std::time::Instant::now();
    let mut checker = Checker {
        events,
        claims,
        seen: HashMap::with_capacity(claims.0.len()),
        places: HashMap::new(),
        result: ReadBack::default(),
    };
    target
        .read_back(&events.prefix(), &mut |stored| checker.look(&stored))
        .await?;
    let mut result = checker.finish();
    result.seconds = begin.elapsed().as_secs_f64();
    Ok(result)
}

struct Checker<'a> {
    events: &'a Events,
    claims: &'a Claims,
    /// One bit per revision of each stream.
    seen: HashMap<u64, Vec<u64>>,
    /// Of each stream the sum of the digests of places where acknowledged events are stored.
    places: HashMap<u64, u64>,
    result: ReadBack,
}

impl Checker<'_> {
    fn look(&mut self, stored: &Stored) {
        let (events, found) = (self.events, &mut self.result);
        let place = || format!("{} revision {}", stored.stream, stored.revision);
        found.found += 1;
        let Some(of) = events.number_of(&stored.mark) else {
            let told = || format!("{} has the mark {:?}", place(), stored.mark);
            return found.wrong(|found| &mut found.altered, told);
        };
        let name = events.stream_name(of.stream);
        if stored.stream != name || stored.revision != of.revision {
            let told = || {
                format!(
                    "revision {} of {name} is stored as {}",
                    of.revision,
                    place()
                )
            };
            found.wrong(|found| &mut found.misplaced, told);
        }
        let bytes = events.bytes_of(of) as u64;
        if stored.bytes.is_some_and(|found| found != bytes) {
            let told = || format!("{} has not {bytes} bytes", place());
            found.wrong(|found| &mut found.altered, told);
        }
        let claim = self.claims.0.get(&of.stream).copied().unwrap_or_default();
        if let Some(whole) = &stored.whole {
            if whole.data != events.data_of(of) {
                let told = || format!("{} has other contents", place());
                found.wrong(|found| &mut found.altered, told);
            }
            if of.revision < claim.acknowledged {
                let sum = self.places.entry(of.stream).or_default();
                let digest = digest(of.revision, stored.revision, whole.position);
                *sum = sum.wrapping_add(digest);
            }
        }
        if of.revision >= claim.sent {
            let told = || format!("{} was not sent, or refused", place());
            found.wrong(|found| &mut found.uninvited, told);
        }
        if !first_time(self.seen.entry(of.stream).or_default(), of.revision) {
            let told = || format!("{} is stored twice", place());
            found.wrong(|found| &mut found.doubled, told);
        }
    }

    fn finish(mut self) -> ReadBack {
        let found = &mut self.result;
        for (stream, claim) in &self.claims.0 {
            found.acknowledged += claim.acknowledged;
            let name = || self.events.stream_name(*stream);
            let lost_before = found.lost;
            let seen = self.seen.entry(*stream).or_default();
            for revision in (0..claim.acknowledged).filter(|revision| first_time(seen, *revision)) {
                let told = || {
                    format!(
                        "revision {revision} of {}, acknowledged, is not stored",
                        name()
                    )
                };
                found.wrong(|found| &mut found.lost, told);
            }
            let stored = self.places.get(stream).copied().unwrap_or(0);
            if claim.answers.is_some_and(|answers| answers != stored)
                && found.lost == lost_before
                && found.is_clean()
            {
                let told = || format!("the answers named other places of {} than the log", name());
                found.wrong(|found| &mut found.misplaced, told);
            }
        }
        self.result
    }
}
