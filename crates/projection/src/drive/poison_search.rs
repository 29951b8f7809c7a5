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

/// Batches that are written at a size that the target comes to the end of, before twice the size is tried.
const BATCHES_OF_A_SIZE: usize = 16;

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
    left: usize,
    limit: usize,
    /// Largest number of events of a batch that is not limited, by the configuration.
    batch_events_max: usize,
    pace: Pace,
    /// Largest number of parked events that are applied again together.
    replay_limit: usize,
    /// True if each batch is announced, because a process has ended without a word.
    pub(crate) announces: bool,
    /// The attempt during which the processes before ended without a word.
    died_in: Option<Attempt>,
    tries: HashMap<At, u32>,
    alone: HashSet<At>,
    pub(crate) verdicts: Verdicts,
}

/// The size of batches that the target comes to the end of in the time that it gives one, if larger ones took longer.
#[derive(Clone, Copy, Debug)]
struct Pace {
    limit: usize,
    /// Events that are still to be applied before a larger batch is tried.
    left: usize,
}

impl Pace {
    const FREE: Self = Self {
        limit: usize::MAX,
        left: 0,
    };

    fn of(limit: usize) -> Self {
        Self {
            limit,
            left: limit.saturating_mul(BATCHES_OF_A_SIZE),
        }
    }

    /// Returns the pace after a batch of this many events has committed. Batches are never larger than `most`.
    fn passed(self, events: usize, most: usize) -> Self {
        let left = self.left.saturating_sub(events);
        match self.limit.saturating_mul(2) {
            _ if left > 0 => Self { left, ..self },
            larger if larger < most => Self::of(larger),
            _ => Self::FREE,
        }
    }
}

impl PoisonSearch {
    pub(crate) fn new(config: &Config) -> Self {
        Self::with(
            config.attempts_max,
            config.deaths_max,
            config.batch_events_max,
        )
    }

    fn with(attempts_max: u32, deaths_max: u32, batch_events_max: usize) -> Self {
        Self {
            attempts_max,
            deaths_max,
            left: 0,
            limit: usize::MAX,
            batch_events_max,
            pace: Pace::FREE,
            replay_limit: usize::MAX,
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

    /// Returns true while events are applied one batch after the other.
    pub(crate) fn is_on(&self) -> bool {
        self.left > 0 || self.pace.left > 0
    }

    /// Returns the largest number of events to be applied together.
    pub(crate) fn limit(&self, most: usize) -> usize {
        self.limit.min(self.pace.limit).min(most).max(1)
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

    /// Returns the largest number of parked events to be applied again together: one, if a process has died of one.
    pub(crate) fn replay_limit(&self, most: usize) -> usize {
        match self.died_in {
            Some(attempt) if attempt.is_replay => 1,
            _ => self.replay_limit.min(most).max(1),
        }
    }

    /// As [`unwritten`](Self::unwritten), of parked events that are applied again.
    pub(crate) fn unwritten_in_replay(&mut self, events: usize) {
        self.replay_limit = self.replay_limit.min(events / 2);
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
        self.replay_limit = usize::MAX;
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
    /// but the batch takes longer than it may, smaller ones are written, and after some of them larger ones again: each
    /// that fails has cost the longest time that there is. No event is to blame.
    pub(crate) fn unwritten(&mut self, events: usize) {
        if events > 1 {
            self.pace = Pace::of(self.pace.limit.min(events / 2));
        }
    }

    /// Notes that a batch of this many events has committed.
    pub(crate) fn passed(&mut self, events: usize) {
        self.pace = self.pace.passed(events, self.batch_events_max);
        self.left = self.left.saturating_sub(events);
        if self.left == 0 {
            self.found();
        }
    }

    /// Notes that nothing is left to be applied: what comes now comes in small batches.
    pub(crate) fn over(&mut self) {
        self.pace = Pace::FREE;
        self.found();
    }

    /// Forgets what was searched, but nothing of replays.
    fn found(&mut self) {
        let before = std::mem::replace(self, self.anew());
        self.pace = before.pace;
        self.replay_limit = before.replay_limit;
        self.died_in = before.died_in.filter(|attempt| attempt.is_replay);
    }

    /// Forgets everything, for the version begins again.
    pub(crate) fn forget(&mut self) {
        *self = self.anew();
    }

    fn anew(&self) -> Self {
        Self::with(self.attempts_max, self.deaths_max, self.batch_events_max)
    }
}

fn died(deaths: u32) -> String {
    format!("the process ended {deaths} times while this event was applied")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> PoisonSearch {
        PoisonSearch::new(&Config::default())
    }

    /// What happened: the size that the target comes to the end of was forgotten after as many events as one batch that
    /// had failed, so the whole time that a batch may take was paid again and again.
    #[test]
    fn larger_batches_are_tried_seldom() {
        let mut search = search();
        assert!(!search.is_on());
        search.unwritten(10_000);
        search.unwritten(5_000);
        for limit in [2_500, 5_000] {
            for _ in 0..BATCHES_OF_A_SIZE {
                assert!(search.is_on());
                assert_eq!(search.limit(10_000), limit);
                search.passed(limit);
            }
        }
        assert!(!search.is_on() && search.limit(10_000) == 10_000);
    }

    /// Goal: an event that cannot be applied is searched as long as it was, also at a size that is smaller for the
    /// time.
    #[test]
    fn a_search_ends_while_batches_are_small() {
        let mut search = search();
        search.unwritten(1_000);
        let failed = Failed {
            events: 500,
            event: None,
            error: String::new(),
        };
        assert!(search.failed(failed).is_none());
        assert_eq!(search.limit(10_000), 250);
        search.passed(250);
        search.passed(250);
        assert_eq!(search.limit(10_000), 500);
        search.over();
        assert!(!search.is_on());
    }

    /// Goal: what is known of a replay that takes too long lasts until it is answered, whatever else is applied.
    #[test]
    fn a_replay_is_halved_until_it_is_answered() {
        let mut search = search();
        search.unwritten_in_replay(500);
        search.unwritten_in_replay(250);
        search.over();
        assert_eq!(search.replay_limit(500), 125);
        search.unwritten_in_replay(1);
        assert_eq!(search.replay_limit(500), 1);
        search.replayed();
        assert_eq!(search.replay_limit(500), 500);
    }
}
