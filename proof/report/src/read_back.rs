//! What reading back everything that was acknowledged has found.

use gesta_kit::verdict::{Kind, Verdict, Violation};
use serde::Serialize;

/// Most findings that are told in words.
const FINDINGS_MAX: usize = 10;

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
    /// Stored in another stream or at another revision than they were appended to, or elsewhere than the answer said.
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
        let (all, first) = (self.acknowledged, self.findings.first());
        let first = first.map_or("", String::as_str);
        let told = (!told.is_empty()).then(|| told.join(", "))?;
        Some(format!(
            "of {all} acknowledged events {told}; first: {first}"
        ))
    }

    /// Adds what another process has found of its own events.
    pub fn add(&mut self, other: ReadBack) {
        self.acknowledged += other.acknowledged;
        self.found += other.found;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.misplaced += other.misplaced;
        self.altered += other.altered;
        self.uninvited += other.uninvited;
        self.seconds = self.seconds.max(other.seconds);
        self.findings.extend(other.findings);
        self.findings.truncate(FINDINGS_MAX);
    }

    /// What a judge has found.
    pub fn of(verdict: &Verdict) -> Self {
        let findings = verdict.violations.iter().take(FINDINGS_MAX);
        Self {
            acknowledged: verdict.events_acknowledged as u64,
            found: verdict.events_stored as u64,
            lost: verdict.count(Kind::NotStored),
            doubled: verdict.count(Kind::StoredTwice),
            misplaced: verdict.count(Kind::WrongPlace),
            altered: verdict.count(Kind::Altered),
            uninvited: verdict.count(Kind::Uninvited),
            seconds: 0.0,
            findings: findings.map(Violation::detail).collect(),
        }
    }
}
