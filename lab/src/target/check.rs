//! The read-back check of a target: everything acknowledged is stored once, where it belongs, unchanged.
//!
//! What was acknowledged is a number per stream; what is stored tells by its mark which event it must be. So the check
//! needs a few bytes per stream and a bit per event.

use std::collections::HashMap;

use serde::Serialize;

use super::{Events, Stored, Target};
use crate::failure::Result;

/// Most findings that are told in words.
const FINDINGS_MAX: usize = 10;

/// What was appended to streams, by the number of the stream.
#[derive(Debug, Clone, Default)]
pub struct Claims(HashMap<u64, Claim>);

#[derive(Debug, Clone, Copy, Default)]
struct Claim {
    /// Events acknowledged: revisions 0 to this, without it.
    acknowledged: u64,
    /// Events sent, those without an answer too.
    sent: u64,
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

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ReadBack {
    /// Events that were acknowledged.
    pub acknowledged: u64,
    /// Events that are stored.
    pub found: u64,
    /// Acknowledged, but not stored.
    pub lost: u64,
    /// Stored more than once.
    pub doubled: u64,
    /// Stored in another stream or at another revision than they were appended to.
    pub misplaced: u64,
    /// Stored with other contents.
    pub altered: u64,
    /// Stored, though never sent or refused.
    pub uninvited: u64,
    /// Time that the check took.
    pub seconds: f64,
    /// The first findings, in words.
    pub findings: Vec<String>,
}

impl ReadBack {
    /// True if nothing was found wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost + self.doubled + self.misplaced + self.altered + self.uninvited == 0
    }

    /// What was found wrong, as one sentence.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        if self.is_clean() {
            return None;
        }
        let counts = [
            (self.lost, "lost"),
            (self.doubled, "doubled"),
            (self.misplaced, "misplaced"),
            (self.altered, "altered"),
            (self.uninvited, "uninvited"),
        ];
        let told = counts.iter().filter(|(count, _)| *count > 0);
        let told: Vec<String> = told
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let first = self.findings.first().map_or("", String::as_str);
        Some(format!(
            "of {} acknowledged events {}; first: {first}",
            self.acknowledged,
            told.join(", ")
        ))
    }

    fn finding(&mut self, text: impl FnOnce() -> String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(text());
        }
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
    result: ReadBack,
}

impl Checker<'_> {
    fn look(&mut self, stored: &Stored) {
        self.result.found += 1;
        let Some(of) = self.events.number_of(&stored.mark) else {
            self.result.altered += 1;
            self.result
                .finding(|| format!("{} has the mark {:?}", place(stored), stored.mark));
            return;
        };
        if stored.stream != self.events.stream_name(of.stream) || stored.revision != of.revision {
            self.result.misplaced += 1;
            self.result.finding(|| {
                let meant = self.events.stream_name(of.stream);
                format!(
                    "revision {} of {meant} is stored as {}",
                    of.revision,
                    place(stored)
                )
            });
        }
        let bytes = self.events.bytes_of(of) as u64;
        if stored.bytes.is_some_and(|found| found != bytes) {
            self.result.altered += 1;
            self.result
                .finding(|| format!("{} has not {bytes} bytes", place(stored)));
        }
        let sent = self.claims.0.get(&of.stream).map_or(0, |claim| claim.sent);
        if of.revision >= sent {
            self.result.uninvited += 1;
            self.result
                .finding(|| format!("{} was not sent, or refused", place(stored)));
        }
        if !self.first_time(of.stream, of.revision) {
            self.result.doubled += 1;
            self.result
                .finding(|| format!("{} is stored twice", place(stored)));
        }
    }

    fn first_time(&mut self, stream: u64, revision: u64) -> bool {
        let bits = self.seen.entry(stream).or_default();
        let word = usize::try_from(revision / 64).expect("revisions have 12 bits");
        if word >= bits.len() {
            bits.resize(word + 1, 0);
        }
        let bit = 1 << (revision % 64);
        let first = bits[word] & bit == 0;
        bits[word] |= bit;
        first
    }

    fn finish(mut self) -> ReadBack {
        for (stream, claim) in &self.claims.0 {
            self.result.acknowledged += claim.acknowledged;
            for revision in 0..claim.acknowledged {
                if self.first_time(*stream, revision) {
                    self.result.lost += 1;
                    self.result.finding(|| {
                        let name = self.events.stream_name(*stream);
                        format!("revision {revision} of {name}, acknowledged, is not stored")
                    });
                }
            }
        }
        self.result
    }
}

fn place(stored: &Stored) -> String {
    format!("{} revision {}", stored.stream, stored.revision)
}
