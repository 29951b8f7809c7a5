//! The search for an event that cannot be applied: which batch failed, how often each event was tried, what was
//! decided.
//!
//! An event that cannot be applied is found by applying smaller and smaller batches, each in a transaction of its own:
//! what comes before it is committed on the way. An event after which the process ended without a word (a crash, a
//! stack overflow) is found in the same way, by what the target remembers of announced attempts. Only the process that
//! takes over counts a death: an attempt that failed while its process lived on says nothing about the event.

use std::collections::{HashMap, HashSet};

use crate::batch::Batch;
use crate::config::Config;
use crate::fault::{At, Verdict, Verdicts};
use crate::target::{Attempt, Stored};

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
pub(crate) struct PoisonSearch {
    attempts_max: u32,
    deaths_max: u32,
    /// Events that are still to be applied one batch after the other.
    pub(crate) left: usize,
    limit: usize,
    /// True if each batch is announced, because a process has ended without a word.
    pub(crate) announces: bool,
    /// The attempt during which the processes before ended without a word.
    died_in: Option<Attempt>,
    tries: HashMap<At, u32>,
    alone: HashSet<At>,
    pub(crate) verdicts: Verdicts,
}

impl PoisonSearch {
    pub(crate) fn new(config: &Config) -> Self {
        Self::with(config.attempts_max, config.deaths_max)
    }

    fn with(attempts_max: u32, deaths_max: u32) -> Self {
        Self {
            attempts_max,
            deaths_max,
            left: 0,
            limit: usize::MAX,
            announces: false,
            died_in: None,
            tries: HashMap::new(),
            alone: HashSet::new(),
            verdicts: Verdicts::new(),
        }
    }

    /// The owner before has ended without a word, when no more than so many events were behind its checkpoint: one of
    /// them may be the reason, later ones are not.
    pub(crate) fn after_death(&mut self, stored: &Stored, config: &Config, behind: u64) {
        let batch_events_max = config.batch_events_max;
        self.died_in = stored.attempt;
        let in_order = self.died_in.filter(|attempt| !attempt.is_replay);
        let before = in_order.map_or(batch_events_max, |attempt| {
            usize::try_from(attempt.events).unwrap_or(usize::MAX)
        });
        self.limit = self.limit.min((before / SMALLER_BY).max(1));
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        self.left = self.left.max(behind.min(batch_events_max));
        self.announces = true;
        // With several logs another event may be the first one now: the one that was tried alone stands alone again.
        if let Some(alone) = in_order.filter(|attempt| attempt.events == 1) {
            self.alone.insert(alone.first);
        }
    }

    /// Returns the attempt to apply so many events, this one the first of them, with its number.
    pub(crate) fn attempt(&self, events: usize, first: At, is_replay: bool) -> Attempt {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        let attempt = Attempt {
            number: 1,
            events,
            first,
            is_replay,
        };
        let deaths = self.died_in.filter(|before| {
            let number = before.number;
            *before == Attempt { number, ..attempt }
        });
        Attempt {
            number: deaths.map_or(0, |before| before.number).saturating_add(1),
            ..attempt
        }
    }

    /// Returns how often processes have ended while this event alone was applied, if that is too often.
    fn deaths(&self, event: At, is_replay: bool) -> Option<u32> {
        let found = self.attempt(1, event, is_replay).number - 1;
        (found >= self.deaths_max).then_some(found)
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

    /// Condemns the first event of the batch, if it has ended the process too often and was not condemned yet.
    pub(crate) fn fatal_in_order(&mut self, batch: &Batch) -> Option<Failed> {
        let event = batch.first()?;
        if self.verdicts.contains_key(&event) {
            return None;
        }
        let deaths = self.deaths(event, false)?;
        // The attempts of the processes that ended count.
        self.tries
            .insert(event, self.attempts_max.saturating_sub(1));
        Some(Failed {
            events: batch.len(),
            event: Some(event),
            error: died(deaths),
        })
    }

    /// Returns true if parked events have to be applied again one by one, for a process has died of one.
    pub(crate) fn replays_one_by_one(&self) -> bool {
        self.died_in.is_some_and(|attempt| attempt.is_replay)
    }

    /// Condemns a parked event that is applied again, if it has ended the process too often.
    pub(crate) fn fatal_in_replay(&mut self, event: At) -> Option<String> {
        let deaths = self.deaths(event, true)?;
        self.died_in = None;
        Some(died(deaths))
    }

    /// Notes that a replay was answered.
    pub(crate) fn replayed(&mut self) {
        self.died_in = self.died_in.filter(|attempt| !attempt.is_replay);
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
        let attempts = *tries;
        // Later deaths were while the event was put aside, for which its key is asked for.
        let has_key = self
            .deaths(event, false)
            .is_none_or(|deaths| deaths < self.deaths_max.saturating_mul(2));
        (attempts >= self.attempts_max).then(|| {
            let verdict = Verdict {
                error: failed.error,
                attempts,
                has_key,
            };
            (event, verdict)
        })
    }

    /// Notes that the target did not come to the end of a batch of this many events, as if it was away. If it was not,
    /// but the batch takes longer than it may, smaller ones are written. No event is to blame.
    pub(crate) fn unwritten(&mut self, events: usize) {
        if events > 1 {
            self.left = self.left.max(events);
            self.limit = self.limit.min(events / 2);
        }
    }

    /// Notes that a batch of this many events has committed.
    pub(crate) fn passed(&mut self, events: usize) {
        self.left = self.left.saturating_sub(events);
        if self.left == 0 {
            self.over();
        }
    }

    /// Notes that nothing is left to be searched.
    pub(crate) fn over(&mut self) {
        let died_in = self.died_in.filter(|attempt| attempt.is_replay);
        self.forget();
        self.died_in = died_in;
    }

    /// Forgets everything, for the version begins again.
    pub(crate) fn forget(&mut self) {
        *self = Self::with(self.attempts_max, self.deaths_max);
    }
}

fn died(deaths: u32) -> String {
    format!("the process ended {deaths} times while this event was applied")
}
