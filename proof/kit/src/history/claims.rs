//! What was appended to streams that one client each has for itself, in a few bytes per stream and none per event: for
//! loads of millions of events.
//!
//! How: every event tells by itself which one it is, so what was acknowledged is a number per stream. The places that
//! answers named are kept as a sum of digests, which tells two histories apart but not where they differ.
//! Not here: how an event tells which one it is.

use std::collections::HashMap;

use crate::faulty::Random;

/// What is claimed of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Claim {
    /// Events acknowledged: revisions 0 to this, without it.
    pub(crate) acknowledged: u64,
    /// Events sent, those without an answer too.
    pub(crate) sent: u64,
    /// Sum of the digests of the places that the answers named; none if they named none.
    pub(crate) answers: Option<u64>,
}

/// Where an append was stored, as its answer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAt {
    /// Revision of the first event.
    pub revision: u64,
    /// Position of the last event.
    pub position: u64,
}

/// What was appended to streams, by the number of the stream.
#[derive(Debug, Clone, Default)]
pub struct Claims(pub(crate) HashMap<u64, Claim>);

/// A place of an event as a number; the sum of such numbers tells two histories apart.
pub(crate) fn digest(event: u64, revision: u64, position: u64) -> u64 {
    let one = Random::new(event ^ position.rotate_left(32)).number();
    Random::new(one ^ revision).number()
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

    /// Adds the streams of another client.
    pub fn add(&mut self, other: Claims) {
        self.0.extend(other.0);
    }
}
