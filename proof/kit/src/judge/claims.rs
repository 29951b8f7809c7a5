//! Counted streams: is everything acknowledged stored once, where it belongs, unchanged, and nothing that was refused?
//! In a bit per event.

use std::collections::HashMap;

use crate::history::{Claims, digest};
use crate::verdict::{Kind, Verdict};

/// An event that a store shows, and which one it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// The number of its stream, as it tells itself.
    pub stream: u64,
    /// Its revision, as it tells itself.
    pub revision: u64,
    /// Whether it stands in that stream.
    pub is_in_its_stream: bool,
    /// The revision at which it stands.
    pub stored_revision: u64,
    /// Its position, if the store shows that.
    pub position: Option<u64>,
    /// Whether its contents are those that were sent.
    pub is_unaltered: bool,
}

/// Compares what a store shows, in any order, with what was claimed.
#[derive(Debug)]
pub struct ClaimsJudge<'a> {
    claims: &'a Claims,
    /// One bit per revision of each stream.
    seen: HashMap<u64, Vec<u64>>,
    /// Of each stream the sum of the digests of places where acknowledged events are stored.
    places: HashMap<u64, u64>,
    verdict: Verdict,
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

impl<'a> ClaimsJudge<'a> {
    /// Nothing was shown.
    #[must_use]
    pub fn new(claims: &'a Claims) -> Self {
        Self {
            claims,
            seen: HashMap::with_capacity(claims.0.len()),
            places: HashMap::new(),
            verdict: Verdict::default(),
        }
    }

    /// An event does not tell which one it is.
    pub fn unknown(&mut self, event: impl FnOnce() -> String) {
        self.verdict.events_stored += 1;
        self.verdict.add(Kind::Altered, 1, event);
    }

    /// The next event; `name` tells of it.
    pub fn look(&mut self, shown: &Shown, name: impl Fn() -> String) {
        let verdict = &mut self.verdict;
        verdict.events_stored += 1;
        let claim = self.claims.0.get(&shown.stream);
        let claim = claim.copied().unwrap_or_default();
        if !shown.is_in_its_stream || shown.stored_revision != shown.revision {
            verdict.add(Kind::WrongPlace, 1, || {
                format!("{} is revision {} of its stream", name(), shown.revision)
            });
        }
        if !shown.is_unaltered {
            verdict.add(Kind::Altered, 1, || {
                format!("{} has other contents", name())
            });
        }
        if let Some(position) = shown.position
            && shown.revision < claim.acknowledged
        {
            let sum = self.places.entry(shown.stream).or_default();
            let digest = digest(shown.revision, shown.stored_revision, position);
            *sum = sum.wrapping_add(digest);
        }
        if shown.revision >= claim.sent {
            verdict.add(Kind::Uninvited, 1, || {
                format!("{} was not sent, or refused", name())
            });
        }
        if !first_time(self.seen.entry(shown.stream).or_default(), shown.revision) {
            verdict.add(Kind::StoredTwice, 1, || {
                format!("{} is stored twice", name())
            });
        }
    }

    /// Everything was shown. `name` gives the name of a stream.
    #[must_use]
    pub fn finish(mut self, name: impl Fn(u64) -> String) -> Verdict {
        let verdict = &mut self.verdict;
        for (stream, claim) in &self.claims.0 {
            verdict.events_acknowledged +=
                usize::try_from(claim.acknowledged).unwrap_or(usize::MAX);
            let lost_before = verdict.count(Kind::NotStored);
            let seen = self.seen.entry(*stream).or_default();
            for revision in (0..claim.acknowledged).filter(|revision| first_time(seen, *revision)) {
                verdict.add(Kind::NotStored, 1, || {
                    let name = name(*stream);
                    format!("revision {revision} of {name}, acknowledged, is not stored")
                });
            }
            let stored = self.places.get(stream).copied().unwrap_or(0);
            // A place that is wrong by itself, or missing, is told of already.
            if claim.answers.is_some_and(|answers| answers != stored)
                && verdict.count(Kind::NotStored) == lost_before
                && verdict.is_clean()
            {
                verdict.add(Kind::WrongPlace, 1, || {
                    format!(
                        "the answers named other places of {} than the log",
                        name(*stream)
                    )
                });
            }
        }
        self.verdict
    }
}
