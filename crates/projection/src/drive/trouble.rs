//! What is known of events that made trouble: which batch failed, how often each event was tried, what was decided.
//!
//! An event that cannot be applied is found by applying smaller and smaller batches, each in a transaction of its own:
//! what comes before it is committed on the way. An event after which the process ended without a word (a crash, a
//! stack overflow) is found in the same way, by what the target remembers of announced batches.

use std::collections::{HashMap, HashSet};

use crate::batch::Batch;
use crate::config::Config;
use crate::fault::{At, Verdict, Verdicts};
use crate::target::Stored;

/// By how much a batch is smaller that follows one after which the process ended.
const SMALLER_BY: usize = 8;

/// What the author's code, or the target, said about a batch.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) events: usize,
    /// The event, if it is known or there is one only.
    pub(crate) event: Option<At>,
    pub(crate) error: String,
}

#[derive(Debug)]
pub(crate) struct Trouble {
    attempts_max: u32,
    /// Events that are still to be applied carefully.
    pub(crate) left: usize,
    limit: usize,
    /// True if each batch is announced, because a process has ended without a word.
    pub(crate) announces: bool,
    /// How often the process has ended during the next event, if that is too often.
    deadly_after: Option<u32>,
    tries: HashMap<At, u32>,
    alone: HashSet<At>,
    pub(crate) verdicts: Verdicts,
}

impl Trouble {
    pub(crate) fn new(attempts_max: u32) -> Self {
        Self {
            attempts_max,
            left: 0,
            limit: usize::MAX,
            announces: false,
            deadly_after: None,
            tries: HashMap::new(),
            alone: HashSet::new(),
            verdicts: Verdicts::new(),
        }
    }

    /// The owner before has ended without a word, when no more than so many events were behind its checkpoint: one of
    /// them may be the reason, later ones are not.
    pub(crate) fn after_death(&mut self, stored: &Stored, config: &Config, behind: u64) {
        let batch_events_max = config.batch_events_max;
        let before = match (stored.attempts, stored.attempt_events) {
            (0, _) | (_, 0) => batch_events_max,
            (_, events) => usize::try_from(events).unwrap_or(usize::MAX),
        };
        let deaths_of_one = if stored.attempt_events == 1 {
            stored.attempts
        } else {
            0
        };
        self.deadly_after = (deaths_of_one >= config.deaths_max).then_some(deaths_of_one);
        self.limit = self.limit.min((before / SMALLER_BY).max(1));
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        self.left = self.left.max(behind.min(batch_events_max));
        self.announces = true;
    }

    /// Returns the largest number of events to be applied together.
    pub(crate) fn limit(&self, most: usize) -> usize {
        self.limit.min(most).max(1)
    }

    /// Cuts a batch so that an event that stands alone does so; returns the rest.
    pub(crate) fn cut(&self, batch: &mut Batch) -> Option<Batch> {
        if self.alone.is_empty() {
            return None;
        }
        let found = batch
            .events()
            .position(|event| self.alone.contains(&crate::fault::at(event)));
        match found {
            Some(0) => batch.cut(1),
            Some(n) => batch.cut(n),
            None => None,
        }
    }

    /// Condemns the first event of the batch, if it is known to be deadly.
    pub(crate) fn deadly(&mut self, batch: &Batch) -> Option<Failed> {
        let event = batch.first()?;
        let deaths = self.deadly_after.take()?;
        // The attempts of the processes that ended count.
        self.tries
            .insert(event, self.attempts_max.saturating_sub(1));
        Some(Failed {
            events: batch.len(),
            event: Some(event),
            error: format!("the process ended {deaths} times while this event was applied"),
        })
    }

    /// Notes a failure. Returns the event, the number of attempts and the error once an event is found to be poison.
    pub(crate) fn failed(&mut self, failed: Failed) -> Option<(At, Verdict)> {
        self.left = self.left.max(failed.events);
        let Some(event) = failed.event else {
            self.limit = (failed.events / 2).max(1);
            return None;
        };
        self.alone.insert(event);
        let tries = self.tries.entry(event).or_insert(0);
        *tries += 1;
        (*tries >= self.attempts_max).then(|| {
            let verdict = Verdict {
                error: failed.error,
                attempts: *tries,
            };
            (event, verdict)
        })
    }

    /// Notes that a batch of this many events has committed.
    pub(crate) fn passed(&mut self, events: usize) {
        self.left = self.left.saturating_sub(events);
        if self.left == 0 {
            *self = Self::new(self.attempts_max);
        }
    }

    /// Notes that nothing is left to be applied carefully.
    pub(crate) fn over(&mut self) {
        *self = Self::new(self.attempts_max);
    }
}
